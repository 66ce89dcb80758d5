// What the pass refuses, and where it changes nothing: it says why.
// RUN: rhino-opt %s --rhino-recompute --verify-diagnostics --split-input-file
// RUN: not rhino-opt %s --split-input-file --rhino-recompute=count=-2 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not rhino-opt %s --split-input-file --rhino-recompute=loops=-3 2>&1 | filecheck %s --check-prefix=LOOPS
// RUN: not rhino-opt %s --split-input-file --rhino-recompute=policy=all 2>&1 | filecheck %s --check-prefix=POLICY
// COUNT: 'rhino-recompute' needs a count of segments, got -2
// LOOPS: 'rhino-recompute' needs a count of loops, got -3
// POLICY: option 'policy' is 'all' but must be one of none, keep, dots, layers

// expected-error @+2 {{'rhino-recompute' needs a function @main; the module has @step}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
  func.func @step() {
    return
  }
}

// -----

// expected-error @+2 {{'rhino-recompute' needs static shapes, got 'tensor<?xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?xf32>) {
  return
}

// -----

// Roles are missing.
// expected-remark @+1 {{nothing is computed again: no argument is a parameter}}
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A forward pass alone keeps nothing.
// expected-remark @+1 {{nothing is computed again: the step has no backward pass}}
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param"}, %x: tensor<8x8xf32> {rhino.role = "batch"}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// What has effects is done once, whatever the policy: what it makes is kept, and nothing is left to be done again.
// expected-remark @+1 {{nothing is computed again: the backward pass reads nothing that would not be kept anyway}}
func.func @main(%u0: tensor<64x256xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %d0: tensor<256x64xf32> {tf.aliasing_output = 1 : i32, rhino.role = "param"}, %u1: tensor<64x256xf32> {tf.aliasing_output = 2 : i32, rhino.role = "param"}, %d1: tensor<256x64xf32> {tf.aliasing_output = 3 : i32, rhino.role = "param"}, %x0: tensor<512x64xf32> {rhino.role = "batch"}) -> (tensor<64x256xf32>, tensor<256x64xf32>, tensor<64x256xf32>, tensor<256x64xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<512x256xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<512x64xf32>
  %h0 = stablehlo.dot_general %x0, %u0, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %m0 = stablehlo.custom_call @drop(%h0) {has_side_effect = true} : (tensor<512x256xf32>) -> tensor<512x256xf32>
  %y0 = stablehlo.dot_general %m0, %d0, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x64xf32>) -> tensor<512x64xf32>
  %x1 = stablehlo.add %x0, %y0 : tensor<512x64xf32>
  %h1 = stablehlo.dot_general %x1, %u1, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %m1 = stablehlo.custom_call @drop(%h1) {has_side_effect = true} : (tensor<512x256xf32>) -> tensor<512x256xf32>
  %y1 = stablehlo.dot_general %m1, %d1, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x64xf32>) -> tensor<512x64xf32>
  %x2 = stablehlo.add %x1, %y1 : tensor<512x64xf32>
  %loss = stablehlo.reduce(%x2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x64xf32>, tensor<f32>) -> tensor<f32>
  %gd1 = stablehlo.dot_general %m1, %seed, contracting_dims = [0] x [0] : (tensor<512x256xf32>, tensor<512x64xf32>) -> tensor<256x64xf32>
  %gm1 = stablehlo.dot_general %seed, %d1, contracting_dims = [1] x [1] : (tensor<512x64xf32>, tensor<256x64xf32>) -> tensor<512x256xf32>
  %s1 = stablehlo.multiply %m1, %m1 : tensor<512x256xf32>
  %t1 = stablehlo.subtract %one, %s1 : tensor<512x256xf32>
  %gh1 = stablehlo.multiply %gm1, %t1 : tensor<512x256xf32>
  %gu1 = stablehlo.dot_general %x1, %gh1, contracting_dims = [0] x [0] : (tensor<512x64xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
  %gx1 = stablehlo.dot_general %gh1, %u1, contracting_dims = [1] x [1] : (tensor<512x256xf32>, tensor<64x256xf32>) -> tensor<512x64xf32>
  %g1 = stablehlo.add %seed, %gx1 : tensor<512x64xf32>
  %gd0 = stablehlo.dot_general %m0, %g1, contracting_dims = [0] x [0] : (tensor<512x256xf32>, tensor<512x64xf32>) -> tensor<256x64xf32>
  %gm0 = stablehlo.dot_general %g1, %d0, contracting_dims = [1] x [1] : (tensor<512x64xf32>, tensor<256x64xf32>) -> tensor<512x256xf32>
  %s0 = stablehlo.multiply %m0, %m0 : tensor<512x256xf32>
  %t0 = stablehlo.subtract %one, %s0 : tensor<512x256xf32>
  %gh0 = stablehlo.multiply %gm0, %t0 : tensor<512x256xf32>
  %gu0 = stablehlo.dot_general %x0, %gh0, contracting_dims = [0] x [0] : (tensor<512x64xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
  %nu0 = stablehlo.subtract %u0, %gu0 : tensor<64x256xf32>
  %nd0 = stablehlo.subtract %d0, %gd0 : tensor<256x64xf32>
  %nu1 = stablehlo.subtract %u1, %gu1 : tensor<64x256xf32>
  %nd1 = stablehlo.subtract %d1, %gd1 : tensor<256x64xf32>
  return %nu0, %nd0, %nu1, %nd1, %loss : tensor<64x256xf32>, tensor<256x64xf32>, tensor<64x256xf32>, tensor<256x64xf32>, tensor<f32>
}
