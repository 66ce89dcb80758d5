// RUN: rhino-opt %s --rhino-split-microbatch=count=2 | filecheck %s
// RUN: not rhino-opt %S/Inputs/manual_sum.mlir --rhino-split-microbatch=count=2 2>&1 | filecheck %s --check-prefix=SUM

// A manual computation is cut along a batch that its body passes through, also where one of its axes splits that batch.

// CHECK: stablehlo.while
// CHECK: sdy.manual_computation(%{{.*}}) in_shardings=[<@manual, [{"dp"}, {}]>] out_shardings=[<@manual, [{"dp"}, {}]>] manual_axes={"dp"} (%[[PART:.*]]: tensor<2x4xf32>)
// CHECK: stablehlo.slice %[[PART]] [0:2, 0:4]
// CHECK: stablehlo.constant dense<2.000000e+00> : tensor<2x4xf32>
// CHECK: sdy.return %{{.*}} : tensor<2x4xf32>
// CHECK: (tensor<4x4xf32>) -> tensor<4x4xf32>

// SUM: error: 'sdy.manual_computation' needs all examples at once: it works along dimension 0, which holds the batch
// SUM: run the step as one micro-batch, or compute this within single examples

sdy.mesh @manual = <["dp"=2]>
func.func @main(%w: tensor<4x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@manual, [{"dp"}, {}]>] out_shardings=[<@manual, [{"dp"}, {}]>] manual_axes={"dp"} (%a: tensor<4x4xf32>) {
    %3 = stablehlo.slice %a [0:4, 0:4] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.constant dense<2.0> : tensor<4x4xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<4x4xf32>
    sdy.return %5 : tensor<4x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
