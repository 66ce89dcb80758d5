// The plan is closed: Shardy's propagation after it changes no sharding of an argument or a result.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" --sdy-propagation-pipeline | filecheck %s

// CHECK: func.func @main(%{{[^:]*}}: tensor<64x512xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// CHECK-SAME: %{{[^:]*}}: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: -> (tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// CHECK: stablehlo.dot_general {{.*}}<@mesh, [{"x"}, {}]>
func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch"}, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %1 = stablehlo.tanh %0 : tensor<64x512xf32>
  return %1 : tensor<64x512xf32>
}
