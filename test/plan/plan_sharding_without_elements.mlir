// What has no elements stays whole, inside the step too: XLA is not asked to find a layout for it.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=x=8" | filecheck %s

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4096x64xf32> {rhino.role = "batch"}) -> tensor<4096x64xf32> {
  // CHECK: stablehlo.sine %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
  %0 = stablehlo.sine %x : tensor<4096x64xf32>
  // CHECK: stablehlo.slice
  // CHECK-SAME: #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>
  // CHECK-SAME: tensor<4096x0xf32>
  %1 = stablehlo.slice %0 [0:4096, 0:0] : (tensor<4096x64xf32>) -> tensor<4096x0xf32>
  %2 = stablehlo.concatenate %1, %0, dim = 1 : (tensor<4096x0xf32>, tensor<4096x64xf32>) -> tensor<4096x64xf32>
  return %2 : tensor<4096x64xf32>
}
