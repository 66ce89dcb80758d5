// With dots, products with parameters are done once: their results are kept, and element-wise work is done again.
// RUN: rhino-opt %s --split-input-file --rhino-recompute=policy=dots | filecheck %s

// Three values of the first layer are read by the backward pass. Only the product's result is kept.
// CHECK-LABEL: func.func @main
// CHECK: %[[H:.*]] = stablehlo.dot_general
// CHECK: stablehlo.dot_general
// CHECK: %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[H]], %{{.*}} : tensor<512x256xf32>, tensor<512x64xf32>
// CHECK: %[[A:.*]] = stablehlo.tanh %[[HELD]]#0
// CHECK: %[[C:.*]] = stablehlo.cosine %[[HELD]]#0
// CHECK: %[[M:.*]] = stablehlo.multiply %[[A]], %[[C]]
// CHECK: stablehlo.dot_general %[[M]], %[[HELD]]#1
// CHECK-NOT: optimization_barrier
func.func @main(%u0: tensor<64x256xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %d0: tensor<256x64xf32> {tf.aliasing_output = 1 : i32, rhino.role = "param"}, %u1: tensor<64x256xf32> {tf.aliasing_output = 2 : i32, rhino.role = "param"}, %d1: tensor<256x64xf32> {tf.aliasing_output = 3 : i32, rhino.role = "param"}, %x0: tensor<512x64xf32> {rhino.role = "batch"}) -> (tensor<64x256xf32>, tensor<256x64xf32>, tensor<64x256xf32>, tensor<256x64xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<512x256xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<512x64xf32>
  %h0 = stablehlo.dot_general %x0, %u0, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %a0 = stablehlo.tanh %h0 : tensor<512x256xf32>
  %c0 = stablehlo.cosine %h0 : tensor<512x256xf32>
  %m0 = stablehlo.multiply %a0, %c0 : tensor<512x256xf32>
  %y0 = stablehlo.dot_general %m0, %d0, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x64xf32>) -> tensor<512x64xf32>
  %x1 = stablehlo.add %x0, %y0 : tensor<512x64xf32>
  %h1 = stablehlo.dot_general %x1, %u1, contracting_dims = [1] x [0] : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %a1 = stablehlo.tanh %h1 : tensor<512x256xf32>
  %c1 = stablehlo.cosine %h1 : tensor<512x256xf32>
  %m1 = stablehlo.multiply %a1, %c1 : tensor<512x256xf32>
  %y1 = stablehlo.dot_general %m1, %d1, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x64xf32>) -> tensor<512x64xf32>
  %x2 = stablehlo.add %x1, %y1 : tensor<512x64xf32>
  %loss = stablehlo.reduce(%x2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x64xf32>, tensor<f32>) -> tensor<f32>
  %gd1 = stablehlo.dot_general %m1, %seed, contracting_dims = [0] x [0] : (tensor<512x256xf32>, tensor<512x64xf32>) -> tensor<256x64xf32>
  %gm1 = stablehlo.dot_general %seed, %d1, contracting_dims = [1] x [1] : (tensor<512x64xf32>, tensor<256x64xf32>) -> tensor<512x256xf32>
  %s1 = stablehlo.multiply %a1, %c1 : tensor<512x256xf32>
  %t1 = stablehlo.subtract %c1, %s1 : tensor<512x256xf32>
  %gh1 = stablehlo.multiply %gm1, %t1 : tensor<512x256xf32>
  %gu1 = stablehlo.dot_general %x1, %gh1, contracting_dims = [0] x [0] : (tensor<512x64xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
  %gx1 = stablehlo.dot_general %gh1, %u1, contracting_dims = [1] x [1] : (tensor<512x256xf32>, tensor<64x256xf32>) -> tensor<512x64xf32>
  %g1 = stablehlo.add %seed, %gx1 : tensor<512x64xf32>
  %gd0 = stablehlo.dot_general %m0, %g1, contracting_dims = [0] x [0] : (tensor<512x256xf32>, tensor<512x64xf32>) -> tensor<256x64xf32>
  %gm0 = stablehlo.dot_general %g1, %d0, contracting_dims = [1] x [1] : (tensor<512x64xf32>, tensor<256x64xf32>) -> tensor<512x256xf32>
  %s0 = stablehlo.multiply %a0, %c0 : tensor<512x256xf32>
  %t0 = stablehlo.subtract %c0, %s0 : tensor<512x256xf32>
  %gh0 = stablehlo.multiply %gm0, %t0 : tensor<512x256xf32>
  %gu0 = stablehlo.dot_general %x0, %gh0, contracting_dims = [0] x [0] : (tensor<512x64xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
  %nu0 = stablehlo.subtract %u0, %gu0 : tensor<64x256xf32>
  %nd0 = stablehlo.subtract %d0, %gd0 : tensor<256x64xf32>
  %nu1 = stablehlo.subtract %u1, %gu1 : tensor<64x256xf32>
  %nd1 = stablehlo.subtract %d1, %gd1 : tensor<256x64xf32>
  return %nu0, %nd0, %nu1, %nd1, %loss : tensor<64x256xf32>, tensor<256x64xf32>, tensor<64x256xf32>, tensor<256x64xf32>, tensor<f32>
}
