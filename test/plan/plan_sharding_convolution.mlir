// A convolution over a batch of images: the images are split, the kernel stays whole.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: comm_bytes = {}
// CHECK: func.func @main(%[[X:[^:]*]]: tensor<64x32x32x16xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>
// CHECK-SAME: %[[K:[^:]*]]: tensor<3x3x16x32xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}]>
// CHECK: stablehlo.convolution(%[[X]], %[[K]])
// CHECK-SAME: sdy.sharding_per_value<[<@mesh, [{"x"}, {}, {}, {}]>]>
func.func @main(%x: tensor<64x32x32x16xf32> {rhino.role = "batch"}, %k: tensor<3x3x16x32xf32> {rhino.role = "param"}) -> tensor<64x32x32x32xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<64x32x32x16xf32>, tensor<3x3x16x32xf32>) -> tensor<64x32x32x32xf32>
  return %0 : tensor<64x32x32x32xf32>
}
