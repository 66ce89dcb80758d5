// A vocabulary that no axis divides: stored whole along it, split inside into parts that differ, and what padding gives.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=2x4 memory-limit=300000000" --verify-diagnostics | filecheck %s

// The product and its readers are split over 50257; so is the argument, of 412 MB, but along its other dimension.
// CHECK: unsplit = [{dim = 1 : i64, name = "arg1", padded = 50264 : i64
// CHECK: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<2048x50257xf32> {{.*}}[{"x"}, {}]>}
// CHECK: sdy.sharding_constraint %[[W]] <@mesh, [{"x"}, {"y"}]>
// CHECK: stablehlo.tanh {{.*}}[{"x"}, {"y"}]
// expected-remark @+1 {{dim 1 of arg1 (50257) is not split: 8 devices do not divide it; padded to 50264, a step would}}
func.func @main(%x: tensor<64x2048xf32> {rhino.role = "batch"}, %w: tensor<2048x50257xf32> {rhino.role = "param"})
    -> tensor<64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x2048xf32>, tensor<2048x50257xf32>) -> tensor<64x50257xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.tanh %0 : tensor<64x50257xf32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [1]
      : (tensor<64x50257xf32>, tensor<f32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}
