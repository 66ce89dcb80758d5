// Layers in a loop: what it stacks for the loop that goes back over them is made again there, layer by layer.
// RUN: rhino-opt %s --rhino-recompute=policy=layers --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=LAYERS
// RUN: rhino-opt %s --rhino-recompute=policy=dots | filecheck %s --check-prefix=DOTS
// RUN: rhino-opt %s --rhino-recompute=policy=layers --rhino-recompute=policy=none --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=NONE
// RUN: rhino-opt %s --rhino-recompute=policy=none | filecheck %s --check-prefix=FUSED
// RUN: rhino-opt %s --rhino-recompute='policy=layers loops=0' | filecheck %s --check-prefix=WHOLE

// Where nothing is done again, the same: jax stacks whatever is differentiated, here the tanh and the cosine of a product.
// FUSED-LABEL: func.func @main
// FUSED: %[[F:.*]]:5 = stablehlo.while({{.*}}) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
// FUSED: stablehlo.while(
// FUSED: stablehlo.tanh
// FUSED: stablehlo.cosine
// FUSED: stablehlo.dot_general
// FUSED: stablehlo.dot_general
// FUSED-NOT: stablehlo.dot_general

// Of no loop anything is done again.
// WHOLE: %{{.*}}:6 = stablehlo.while

// Of three stacks (what a layer reads, its tanh and its cosine) one is left, of what it reads.
// LAYERS-LABEL: func.func @main
// LAYERS: %[[F:.*]]:4 = stablehlo.while({{.*}}) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>
// LAYERS: stablehlo.while({{.*}} = %[[F]]#3
// LAYERS: stablehlo.dynamic_slice
// LAYERS: %[[X:.*]] = stablehlo.dynamic_slice %{{.*}} sizes = [1, 64, 8]
// LAYERS: %[[ROW:.*]] = stablehlo.reshape %[[X]]
// LAYERS: %[[H:.*]] = stablehlo.dot_general %[[ROW]]
// LAYERS: stablehlo.tanh %[[H]]
// LAYERS: stablehlo.cosine %[[H]]
// LAYERS: 1 loops

// With dots the product's result is stacked as well, and no product is done again: two are left in the second loop.
// DOTS-LABEL: func.func @main
// DOTS: %[[F:.*]]:5 = stablehlo.while({{.*}}) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
// DOTS: stablehlo.while(
// DOTS: stablehlo.tanh
// DOTS: stablehlo.cosine
// DOTS: stablehlo.dot_general
// DOTS: stablehlo.dot_general
// DOTS-NOT: stablehlo.dot_general

// Undone, the product's result is stacked, as with dots: its tanh and cosine are made where they are read.
// NONE-LABEL: func.func @main
// NONE: %[[F:.*]]:5 = stablehlo.while({{.*}}) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
// NONE: stablehlo.while(
// NONE: %[[LAYER:.*]] = stablehlo.subtract %{{.*}}, %{{.*}} : tensor<i32>
// NONE: stablehlo.dynamic_slice %{{.*}}, %[[LAYER]], %{{.*}} sizes = [1, 64, 8]
// NONE: stablehlo.tanh
// NONE: stablehlo.cosine
// NONE: stablehlo.dot_general
// NONE: stablehlo.dot_general
// NONE-NOT: stablehlo.dot_general
// NONE: 1 loops
func.func @main(%w: tensor<3x8x8xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %x: tensor<64x8xf32> {rhino.role = "batch"}) -> (tensor<3x8x8xf32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x64x8xf32>
  %none = stablehlo.constant dense<0.0> : tensor<3x8x8xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<64x8xf32>
  %f:6 = stablehlo.while(%i = %c0, %h = %x, %v = %w, %xs = %zeros, %ts = %zeros, %cs = %zeros) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %v, %i, %c0, %c0, sizes = [1, 8, 8] : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.dot_general %h, %1, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %3 = stablehlo.tanh %2 : tensor<64x8xf32>
    %4 = stablehlo.cosine %2 : tensor<64x8xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<64x8xf32>
    %6 = stablehlo.reshape %h : (tensor<64x8xf32>) -> tensor<1x64x8xf32>
    %7 = stablehlo.dynamic_update_slice %xs, %6, %i, %c0, %c0 : (tensor<3x64x8xf32>, tensor<1x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x64x8xf32>
    %8 = stablehlo.reshape %3 : (tensor<64x8xf32>) -> tensor<1x64x8xf32>
    %9 = stablehlo.dynamic_update_slice %ts, %8, %i, %c0, %c0 : (tensor<3x64x8xf32>, tensor<1x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x64x8xf32>
    %10 = stablehlo.reshape %4 : (tensor<64x8xf32>) -> tensor<1x64x8xf32>
    %11 = stablehlo.dynamic_update_slice %cs, %10, %i, %c0, %c0 : (tensor<3x64x8xf32>, tensor<1x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x64x8xf32>
    %12 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %12, %5, %v, %7, %9, %11 : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
  }
  %loss = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x8xf32>, tensor<f32>) -> tensor<f32>
  %b:7 = stablehlo.while(%i = %c0, %g = %seed, %gw = %none, %v = %w, %xs = %f#3, %ts = %f#4, %cs = %f#5) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.subtract %c2, %i : tensor<i32>
    %1 = stablehlo.dynamic_slice %v, %0, %c0, %c0, sizes = [1, 8, 8] : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.dynamic_slice %xs, %0, %c0, %c0, sizes = [1, 64, 8] : (tensor<3x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x8xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x64x8xf32>) -> tensor<64x8xf32>
    %5 = stablehlo.dynamic_slice %ts, %0, %c0, %c0, sizes = [1, 64, 8] : (tensor<3x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x8xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x64x8xf32>) -> tensor<64x8xf32>
    %7 = stablehlo.dynamic_slice %cs, %0, %c0, %c0, sizes = [1, 64, 8] : (tensor<3x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x8xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x64x8xf32>) -> tensor<64x8xf32>
    %9 = stablehlo.multiply %6, %8 : tensor<64x8xf32>
    %10 = stablehlo.multiply %g, %9 : tensor<64x8xf32>
    %11 = stablehlo.dot_general %4, %10, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<8x8xf32>
    %12 = stablehlo.reshape %11 : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %13 = stablehlo.dynamic_update_slice %gw, %12, %0, %c0, %c0 : (tensor<3x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x8xf32>
    %14 = stablehlo.dot_general %10, %2, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %15 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %15, %14, %13, %v, %xs, %ts, %cs : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>, tensor<3x64x8xf32>
  }
  %new = stablehlo.subtract %w, %b#2 : tensor<3x8x8xf32>
  return %new, %loss : tensor<3x8x8xf32>, tensor<f32>
}
