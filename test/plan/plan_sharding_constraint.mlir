// A sharding constraint in the program (jax.lax.with_sharding_constraint) is a choice the user made for that value.
// RUN: rhino-opt %s --rhino-plan-sharding=topology=dgx-h100:1 | filecheck %s

// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK: %[[H:.*]] = stablehlo.dot_general
// CHECK: %[[C:.*]] = sdy.sharding_constraint %[[H]] <@mesh, [{}, {"x"}]>
// What follows element by element keeps it; rows, which would be as good, are not used.
// CHECK: %[[T:.*]] = stablehlo.tanh %[[C]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK: return %[[T]]
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch"}, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<64x512xf32>
  %2 = stablehlo.tanh %1 : tensor<64x512xf32>
  return %2 : tensor<64x512xf32>
}
