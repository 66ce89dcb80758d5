// groups: stages share device groups in turn; what stays on a group is not transferred, nor is its argument doubled.
// RUN: rhino-opt %s --rhino-form-fragments=groups=2 | filecheck %s

// CHECK: rhino.placement = {stage0 = [0], stage1 = [1]}
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[A:.*]] = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: %[[A1:.*]] = mpmd.transfer %[[A]]
// CHECK: %[[B:.*]] = mpmd.fragment<mesh="stage1", origin=["forward"], stage=1> (%[[A1]])
// CHECK: %[[B0:.*]] = mpmd.transfer %[[B]]
// Stage 2 is on the devices of stage 0, and finds what that made.
// CHECK: %[[C:.*]] = mpmd.fragment<mesh="stage0", origin=["forward"], stage=2> (%[[A]], %[[B0]],
// CHECK-NEXT: stablehlo.add
// CHECK: return %[[C]]
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%{{[a-z0-9]+}}: !mpmd.mesh_tensor<"stage0", tensor<4xf32>> {rhino.argument = {index = 0 : i64}, rhino.role = "batch"}) ->
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y = stablehlo.exponential %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %z = stablehlo.add %h, %y {rhino.stage = {phase = "forward", stage = 2 : i64}} : tensor<4xf32>
    %w = stablehlo.multiply %z, %x {rhino.stage = {phase = "forward", stage = 2 : i64}} : tensor<4xf32>
    %b = stablehlo.add %a, %w {rhino.stage = {phase = "forward", stage = 2 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}
