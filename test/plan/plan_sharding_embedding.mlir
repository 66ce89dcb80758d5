// Looking up rows and adding to them: a table split by columns needs nothing sent, whichever rows are asked for.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: comm_bytes = {}
// CHECK: func.func @main(%[[TABLE:[^:]*]]: tensor<50000x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>
// CHECK-SAME: %[[IDS:[^:]*]]: tensor<4096x1xi32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>
// CHECK-SAME: %[[G:[^:]*]]: tensor<4096x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>
// CHECK: "stablehlo.gather"(%[[TABLE]], %[[IDS]]){{.*}}{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK: "stablehlo.scatter"(%[[TABLE]], %[[IDS]], %[[G]])
// The sum of two rows inside the scatter is part of it, and has no layout.
// CHECK: %{{.*}} = stablehlo.add %{{.*}}, %{{.*}} : tensor<f32>
// CHECK: sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>
func.func @main(%table: tensor<50000x512xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %ids: tensor<4096x1xi32> {rhino.role = "batch"}, %g: tensor<4096x512xf32> {rhino.role = "batch"}) -> (tensor<50000x512xf32>, tensor<4096x512xf32>) {
  %rows = "stablehlo.gather"(%table, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 512>}> : (tensor<50000x512xf32>, tensor<4096x1xi32>) -> tensor<4096x512xf32>
  %new = "stablehlo.scatter"(%table, %ids, %g) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %sum = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<50000x512xf32>, tensor<4096x1xi32>, tensor<4096x512xf32>) -> tensor<50000x512xf32>
  return %new, %rows : tensor<50000x512xf32>, tensor<4096x512xf32>
}
