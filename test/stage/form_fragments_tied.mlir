// A parameter read on two stages: sent once before the loop; each stage sums its own gradients, sent once after it.
// RUN: rhino-opt %s --rhino-form-fragments --mlir-pass-statistics 2>&1 | filecheck %s

// CHECK-LABEL: func.func private @microbatch
// CHECK: mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: mpmd.transfer
// CHECK-NEXT: mpmd.fragment<mesh="stage1", origin=["forward"], stage=1>
// A constraint behind a result left open belongs to what made that: the value is sent as it says.
// CHECK: stablehlo.tanh
// CHECK-NEXT: sdy.sharding_constraint
// CHECK-NEXT: mpmd.return
// CHECK: sharding=<@mesh, [{"x"}]>
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage0", tensor<4xf32>
// CHECK: %[[SENT:.*]] = mpmd.transfer %[[W]]
// CHECK: %[[R:.*]]:2 = mpmd.for
// CHECK: mpmd.call @microbatch(%{{.*}}, %{{.*}}, %[[W]], %[[SENT]]
// CHECK: %[[G:.*]] = mpmd.transfer %[[R]]#1
// CHECK-NEXT: %[[V:.*]] = mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (%[[R]]#0, %[[G]], %[[W]])
// CHECK: return %[[V]]
// CHECK: 7 fragments
// CHECK: 3 transfers
// 16 bytes before, 16 after, and 16 in each of two micro-batches.
// CHECK: 64 transferred-bytes
sdy.mesh @mesh = <["x"=2]>
func.func @main(%w: tensor<4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.exponential %w {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y0 = stablehlo.add %h, %w {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %y1 = stablehlo.tanh %y0 {rhino.stage = {phase = "forward", stage = 1 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>]>} : tensor<4xf32>
    %y = sdy.sharding_constraint %y1 <@mesh, [{"x"}]> : tensor<4xf32>
    %b0 = stablehlo.add %a0, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %b1 = stablehlo.add %a1, %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %g = stablehlo.add %r#1, %r#2 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<4xf32>
  %v = stablehlo.subtract %w, %g {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<4xf32>
  return %v : tensor<4xf32>
}
