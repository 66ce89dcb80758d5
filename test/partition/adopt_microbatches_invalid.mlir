// A loop over parts of the batch that is none over micro-batches is left, and a remark says why.
// RUN: rhino-opt %s --rhino-adopt-microbatches --verify-diagnostics | filecheck %s

// Parameters are updated in every trip: a step of its own each.
// CHECK-NOT: rhino.microbatches
func.func @main(%w: tensor<16x4xf32> {rhino.role = "param"}, %x: tensor<4x8x16xf32> {rhino.role = "batch"}) -> tensor<16x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  // expected-remark @+2 {{this loop over 4 parts of the batch cannot be the micro-batches of a pipeline: value 1 that it carries, a tensor<16x4xf32>, is not a sum over the parts, nor a running mean}}
  // expected-note @+1 {{update the parameters once, after the loop}}
  %0:2 = stablehlo.while(%i = %c0, %p = %w) : tensor<i32>, tensor<16x4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %c4 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %x, %i, %c0, %c0, sizes = [1, 8, 16] : (tensor<4x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.dot_general %2, %p, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.dot_general %2, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    %7 = stablehlo.subtract %p, %6 : tensor<16x4xf32>
    %11 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %11, %7 : tensor<i32>, tensor<16x4xf32>
  }
  return %0#1 : tensor<16x4xf32>
}
