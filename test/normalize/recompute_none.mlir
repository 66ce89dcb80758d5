// A step is made what it is without jax.checkpoint: what is done again behind a barrier is not.
// RUN: rhino-opt %s --rhino-recompute=policy=none --split-input-file --verify-diagnostics --mlir-pass-statistics 2>&1 | filecheck %s

// The product, and the cosine made of it, are there. The barrier goes with them, and the cotangent that it held back.
// CHECK-LABEL: func.func @main
// CHECK: %[[H:.*]] = stablehlo.dot_general %arg1, %arg0
// CHECK: stablehlo.sine %[[H]]
// CHECK-NOT: stablehlo.optimization_barrier
// CHECK: %[[C:.*]] = stablehlo.cosine %[[H]]
// CHECK: %[[G:.*]] = stablehlo.multiply %[[C]], %{{.*}}
// CHECK: %[[W:.*]] = stablehlo.dot_general %arg1, %[[G]]
// CHECK: stablehlo.subtract %arg0, %[[W]]
// CHECK-NOT: stablehlo.dot_general
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> (tensor<8x8xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %seed = stablehlo.constant dense<1.0> : tensor<4x8xf32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = stablehlo.sine %h : tensor<4x8xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
  %late:3 = stablehlo.optimization_barrier %x, %w, %seed : tensor<4x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>
  %again = stablehlo.dot_general %late#0, %late#1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %c = stablehlo.cosine %again : tensor<4x8xf32>
  %g = stablehlo.multiply %c, %late#2 : tensor<4x8xf32>
  %gw = stablehlo.dot_general %late#0, %g, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %new = stablehlo.subtract %w, %gw : tensor<8x8xf32>
  return %new, %loss : tensor<8x8xf32>, tensor<f32>
}

// -----

// Regions that read different values are different: one branch adds a, the other b.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.case
// CHECK: stablehlo.optimization_barrier
// CHECK: stablehlo.case
// expected-remark @+1 {{the step computes nothing again}}
func.func @main(%a: tensor<8xf32>, %b: tensor<8xf32>, %i: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %one = "stablehlo.case"(%i) ({
    %0 = stablehlo.add %a, %a : tensor<8xf32>
    stablehlo.return %0 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  %late:2 = stablehlo.optimization_barrier %i, %b : tensor<i32>, tensor<8xf32>
  %two = "stablehlo.case"(%late#0) ({
    %0 = stablehlo.add %late#1, %late#1 : tensor<8xf32>
    stablehlo.return %0 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  return %one, %two : tensor<8xf32>, tensor<8xf32>
}

// -----

// What has effects is done as often as it stands there; so is what a barrier of the user holds that does nothing again.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-2: stablehlo.custom_call @drop
// expected-remark @+1 {{the step computes nothing again}}
func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.custom_call @drop(%x) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.optimization_barrier %x : tensor<8xf32>
  %2 = stablehlo.custom_call @drop(%1) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %2 : tensor<8xf32>, tensor<8xf32>
}
