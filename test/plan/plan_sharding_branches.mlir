// Both branches of a conditional leave their result in one layout, that of the value the conditional defines.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: func.func @main(%[[WHICH:[^:]*]]: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>}
// CHECK-SAME: %[[X:[^:]*]]: tensor<64x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK: %[[OUT:.*]] = "stablehlo.case"(%[[WHICH]])
// CHECK: stablehlo.tanh %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK: stablehlo.negate %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK: sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>
// CHECK: return %[[OUT]]
func.func @main(%which: tensor<i32>, %x: tensor<64x512xf32> {rhino.role = "batch"}) -> tensor<64x512xf32> {
  %0 = "stablehlo.case"(%which) ({
    %1 = stablehlo.tanh %x : tensor<64x512xf32>
    stablehlo.return %1 : tensor<64x512xf32>
  }, {
    %1 = stablehlo.negate %x : tensor<64x512xf32>
    stablehlo.return %1 : tensor<64x512xf32>
  }) : (tensor<i32>) -> tensor<64x512xf32>
  return %0 : tensor<64x512xf32>
}
