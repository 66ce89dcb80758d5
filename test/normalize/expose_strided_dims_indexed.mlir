// Operations that index other dimensions carry a split one along: gather, scatter, sort, reverse, iota, branches.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s

// CHECK: @main(%[[T:.*]]: tensor<32x2x8xf32> {rhino.role = "param"
// CHECK-SAME: %[[W:.*]]: tensor<2x8x16xf32> {rhino.role = "param"
func.func @main(%table: tensor<32x16xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %w: tensor<16x16xf32> {rhino.role = "param"},
                %ids: tensor<4x1xi32>, %p: tensor<i1>) -> (tensor<32x16xf32>, tensor<4x8xf32>) {
  // CHECK: %[[E:.*]] = "stablehlo.gather"(%[[T]], %{{.*}}) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>{{.*}}slice_sizes = array<i64: 1, 2, 8>}>
  %0 = "stablehlo.gather"(%table, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<4x1xi32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.dot_general %[[E]], %[[W]], contracting_dims = [1, 2] x [0, 1]
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.reverse %[[E]], dims = [0] : tensor<4x2x8xf32>
  %2 = stablehlo.reverse %0, dims = [0] : tensor<4x16xf32>
  // CHECK: "stablehlo.sort"(%{{.*}}) <{dimension = 0 : i64
  %3 = "stablehlo.sort"(%2) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.iota dim = 0 : tensor<4x2x8xf32>
  %4 = stablehlo.iota dim = 0 : tensor<4x16xf32>
  // An iota along the split dimension itself is made whole.
  // CHECK: %[[I:.*]] = stablehlo.iota dim = 1 : tensor<4x16xf32>
  // CHECK: stablehlo.reshape %[[I]] : (tensor<4x16xf32>) -> tensor<4x2x8xf32>
  %5 = stablehlo.iota dim = 1 : tensor<4x16xf32>
  %6 = stablehlo.add %3, %4 : tensor<4x16xf32>
  %7 = stablehlo.add %6, %5 : tensor<4x16xf32>
  // CHECK: "stablehlo.if"
  %8 = "stablehlo.if"(%p) ({
    stablehlo.return %7 : tensor<4x16xf32>
  }, {
    stablehlo.return %6 : tensor<4x16xf32>
  // CHECK: }) : (tensor<i1>) -> tensor<4x2x8xf32>
  }) : (tensor<i1>) -> tensor<4x16xf32>
  %9 = stablehlo.slice %8 [0:4, 0:8] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %10 = stablehlo.slice %8 [0:4, 8:16] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %11 = stablehlo.multiply %9, %10 : tensor<4x8xf32>
  // CHECK: "stablehlo.scatter"(%[[T]], %{{.*}}, %{{.*}}) <{{.*}}update_window_dims = [1, 2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1
  %12 = "stablehlo.scatter"(%table, %ids, %8) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<4x1xi32>, tensor<4x16xf32>) -> tensor<32x16xf32>
  return %12, %11 : tensor<32x16xf32>, tensor<4x8xf32>
}
