// Shardy takes the only function of a module for its entry; what works in C++ is not refused.
// RUN: rhino-opt %s --sdy-propagation-pipeline | filecheck %s

sdy.mesh @mesh = <["x"=2]>
// CHECK: func.func @only(%{{.*}}: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
// CHECK-SAME: -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
func.func @only(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
