// Layers stacked for a scan, read in rows by two stages: one argument and one result per stage, no slice left.
// RUN: rhino-opt %s --rhino-form-fragments --split-input-file | filecheck %s

// CHECK-NOT: stablehlo.slice
// CHECK-LABEL: func.func private @microbatch
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage0", tensor<2x4xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[0, 2]]}, rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[W1:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage1", tensor<1x4xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[2, 3]]}, rhino.role = "param", tf.aliasing_output = 1 : i32}
// An argument read whole as well stays whole.
// CHECK-SAME: tensor<3x4xf32>> {rhino.argument = {index = 1 : i64}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"stage0", tensor<2x4xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[0, 2]]}}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", tensor<1x4xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[2, 3]]}}
// CHECK: %[[V0:.*]] = mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (%[[W0]],
// CHECK: %[[V1:.*]] = mpmd.fragment<mesh="stage1", origin=["update"], stage=1> (%[[W1]],
// CHECK-NOT: stablehlo.concatenate
// CHECK: return %[[V0]], %[[V1]],
func.func @main(
    %w: tensor<3x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %x: tensor<3x4xf32> {rhino.role = "other"}
  ) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
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
    %x1 = stablehlo.slice %x [2:3, 0:4] {rhino.stage = {phase = "forward", stage = 1 : i64}} : (tensor<3x4xf32>) -> tensor<1x4xf32>
    %y = stablehlo.add %w1, %x1 {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<1x4xf32>
    %b0 = stablehlo.add %a0, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<2x4xf32>
    %b1 = stablehlo.add %a1, %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<1x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<2x4xf32>, tensor<1x4xf32>
  }
  %w0_again = stablehlo.slice %w [0:2, 0:4] {rhino.stage = {phase = "update", stage = 0 : i64}} : (tensor<3x4xf32>) -> tensor<2x4xf32>
  %v0 = stablehlo.subtract %w0_again, %r#1 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<2x4xf32>
  %v1 = stablehlo.subtract %w1, %r#2 {rhino.stage = {phase = "update", stage = 1 : i64}} : tensor<1x4xf32>
  %v = stablehlo.concatenate %v0, %v1, dim = 0 : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<3x4xf32>
  return %v, %x : tensor<3x4xf32>, tensor<3x4xf32>
}

// -----

// Stacked along the second dimension, as MaxText's are: its rows are columns of the first.
// CHECK-LABEL: func.func @main
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<4x2xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[0, 4], [0, 2]]}, rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", tensor<4x1xf32>> {rhino.argument = {index = 0 : i64, slice = {{\[}}[0, 4], [2, 3]]}, rhino.role = "param", tf.aliasing_output = 1 : i32}
// CHECK-NOT: stablehlo.concatenate
func.func @main(%w: tensor<4x3xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}) -> tensor<4x3xf32> {
  %z0 = stablehlo.constant dense<0.0> : tensor<4x2xf32>
  %z1 = stablehlo.constant dense<0.0> : tensor<4x1xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %w0 = stablehlo.slice %w [0:4, 0:2] : (tensor<4x3xf32>) -> tensor<4x2xf32>
  %w1 = stablehlo.slice %w [0:4, 2:3] : (tensor<4x3xf32>) -> tensor<4x1xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %z0, %a1 = %z1) : tensor<i32>, tensor<4x2xf32>, tensor<4x1xf32>
    attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %w0 {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4x2xf32>
    %y = stablehlo.tanh %w1 {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4x1xf32>
    %b0 = stablehlo.add %a0, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4x2xf32>
    %b1 = stablehlo.add %a1, %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4x1xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4x2xf32>, tensor<4x1xf32>
  }
  %v0 = stablehlo.subtract %w0, %r#1 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<4x2xf32>
  %v1 = stablehlo.subtract %w1, %r#2 {rhino.stage = {phase = "update", stage = 1 : i64}} : tensor<4x1xf32>
  %v = stablehlo.concatenate %v0, %v1, dim = 1 : (tensor<4x2xf32>, tensor<4x1xf32>) -> tensor<4x3xf32>
  return %v : tensor<4x3xf32>
}
