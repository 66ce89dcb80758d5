// Two layers and the gradients of their loss: what the backward pass reads of the first is made again in front of it.
// RUN: rhino-opt %s --rhino-recompute=policy=layers | filecheck %s --check-prefix=LAYERS
// RUN: rhino-opt %s --rhino-recompute=policy=keep | filecheck %s --check-prefix=KEEP
// RUN: rhino-opt %s --rhino-recompute="policy=layers count=0" 2>&1 | filecheck %s --check-prefix=NONE

// The product and the tanh are done again, behind a barrier that also holds the gradient of the first layer's result.
// The second layer is the last: its backward pass comes at once.
// LAYERS-LABEL: func.func @main
// LAYERS-SAME: %[[U:.*]]: tensor<64x256xf32> {{{.*}}}, %[[D:.*]]: tensor<256x64xf32> {{{.*}}}, %{{.*}}: tensor<64x256xf32> {{{.*}}}, %{{.*}}: tensor<256x64xf32> {{{.*}}}, %[[X:.*]]: tensor<512x64xf32>
// LAYERS: %[[H:.*]] = stablehlo.dot_general %[[X]], %[[U]]
// LAYERS: stablehlo.tanh %[[H]]
// LAYERS: stablehlo.tanh
// LAYERS: %[[HELD:.*]]:3 = stablehlo.optimization_barrier %[[X]], %[[U]], %{{.*}} : tensor<512x64xf32>, tensor<64x256xf32>, tensor<512x64xf32>
// LAYERS: %[[AGAIN:.*]] = stablehlo.dot_general %[[HELD]]#0, %[[HELD]]#1
// LAYERS: %[[M:.*]] = stablehlo.tanh %[[AGAIN]]
// LAYERS: stablehlo.dot_general %[[M]], %[[HELD]]#2
// LAYERS: stablehlo.dot_general %[[HELD]]#2, %[[D]]
// LAYERS: stablehlo.multiply %[[M]], %[[M]]
// LAYERS-NOT: optimization_barrier

// KEEP-LABEL: func.func @main
// KEEP-NOT: optimization_barrier
// KEEP: return

// NONE: remark: nothing is computed again: no segments are asked for
// NONE-NOT: optimization_barrier
// NONE: return
func.func @main(%u0: tensor<64x256xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %d0: tensor<256x64xf32> {tf.aliasing_output = 1 : i32, rhino.role = "param"}, %u1: tensor<64x256xf32> {tf.aliasing_output = 2 : i32, rhino.role = "param"}, %d1: tensor<256x64xf32> {tf.aliasing_output = 3 : i32, rhino.role = "param"}, %x0: tensor<512x64xf32> {rhino.role = "batch"}) -> (tensor<64x256xf32>, tensor<256x64xf32>, tensor<64x256xf32>, tensor<256x64xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<512x256xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<512x64xf32>
  %h0 = stablehlo.dot_general %x0, %u0, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %m0 = stablehlo.tanh %h0 : tensor<512x256xf32>
  %y0 = stablehlo.dot_general %m0, %d0, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x64xf32>) -> tensor<512x64xf32>
  %x1 = stablehlo.add %x0, %y0 : tensor<512x64xf32>
  %h1 = stablehlo.dot_general %x1, %u1, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %m1 = stablehlo.tanh %h1 : tensor<512x256xf32>
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
