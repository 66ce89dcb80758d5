// State that is pinned is where it is pinned to, wherever it is read: sent from there, and returned there.
// RUN: rhino-opt %s --rhino-form-fragments --split-input-file | filecheck %s

// Stage 0 reads and updates it, stage 1 keeps it.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage1", tensor<4xf32>> {rhino.argument = {index = 0 : i64}, rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"stage1", tensor<4xf32>> {rhino.argument = {index = 0 : i64}}
// CHECK: %[[SENT:.*]] = mpmd.transfer {{.*}}%[[W]]
// CHECK: %[[NEW:.*]] = mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (
// CHECK: %[[BACK:.*]] = mpmd.transfer {{.*}}%[[NEW]]
// CHECK: return %[[BACK]],
func.func @main(
    %w: tensor<4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32, rhino.pin = [{sharding = [[]], stage = 1 : i64}]},
    %x: tensor<4xf32> {rhino.role = "other"}
  ) -> (tensor<4xf32> {rhino.pin = [{sharding = [[]], stage = 1 : i64}]}, tensor<4xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %z, %a1 = %z) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %w {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y = stablehlo.add %h, %x {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %b0 = stablehlo.add %a0, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %b1 = stablehlo.add %a1, %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %v = stablehlo.subtract %w, %r#1 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<4xf32>
  return %v, %r#2 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Rows that two stages read, of an argument that is pinned as one piece: it stays one.
// CHECK-LABEL: func.func @main
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<3x4xf32>> {rhino.argument = {index = 0 : i64}, rhino.role = "param"}
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param", rhino.pin = [{sharding = [[], []], stage = 0 : i64}]})
    -> (tensor<2x4xf32>, tensor<1x4xf32>) {
  %z0 = stablehlo.constant dense<0.0> : tensor<2x4xf32>
  %z1 = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %w0 = stablehlo.slice %w [0:2, 0:4] : (tensor<3x4xf32>) -> tensor<2x4xf32>
  %w1 = stablehlo.slice %w [2:3, 0:4] : (tensor<3x4xf32>) -> tensor<1x4xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %z0, %a1 = %z1) : tensor<i32>, tensor<2x4xf32>, tensor<1x4xf32>
    attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %w0 {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<2x4xf32>
    %y = stablehlo.tanh %w1 {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<1x4xf32>
    %b0 = stablehlo.add %a0, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<2x4xf32>
    %b1 = stablehlo.add %a1, %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<1x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<2x4xf32>, tensor<1x4xf32>
  }
  return %r#1, %r#2 : tensor<2x4xf32>, tensor<1x4xf32>
}
