// split-backward: what no other stage waits for gets a fragment of its own, on the stages that others wait for.
// RUN: rhino-opt %s --rhino-form-fragments=split-backward | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments | filecheck %s --check-prefix=WHOLE

// WHOLE-LABEL: func.func private @microbatch
// WHOLE-NOT: origin=["weight"

// CHECK-LABEL: func.func private @microbatch
// The gradient that stage 0 waits for, and with it what the rest needs of this part.
// CHECK: %[[B1:.*]]:2 = mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1>
// CHECK: %[[E:.*]] = stablehlo.cosine
// CHECK-NEXT: %[[D:.*]] = stablehlo.negate %[[E]]
// CHECK-NEXT: mpmd.return %[[E]], %[[D]]
// CHECK: mpmd.transfer %[[B1]]#1
// Nobody waits for stage 0: its backward stays whole.
// CHECK-NEXT: %[[B0:.*]] = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0>
// CHECK: stablehlo.add
// The sum is updated later.
// CHECK: %[[W1:.*]] = mpmd.fragment<mesh="stage1", origin=["weight"(1)], stage=1> (%[[B1]]#0,
// CHECK: stablehlo.sine
// CHECK: stablehlo.add
// CHECK: return %[[B0]], %[[W1]]
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> (tensor<4xf32>, tensor<4xf32>) {
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
    %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y = stablehlo.exponential %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %e = stablehlo.cosine %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %g1 = stablehlo.sine %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %d = stablehlo.negate %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b1 = stablehlo.add %a1, %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b0 = stablehlo.add %a0, %d {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#1, %r#2 : tensor<4xf32>, tensor<4xf32>
}
