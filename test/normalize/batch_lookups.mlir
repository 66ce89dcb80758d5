// What is looked up by the number of the example becomes a look-up within the example.
// RUN: rhino-opt %s --rhino-batch-lookups | filecheck %s

// logits[jnp.arange(8), labels], as jax lowers it: negative numbers would count from the end. The column that counts is
// no index any more.
// CHECK-LABEL: func.func @labels
// CHECK-SAME: %[[X:.*]]: tensor<8x5xf32>, %[[L:.*]]: tensor<8xi32>
// CHECK: %[[R:.*]] = stablehlo.reshape %[[L]] : (tensor<8xi32>) -> tensor<8x1xi32>
// CHECK: "stablehlo.gather"(%[[X]], %[[R]])
// CHECK-SAME: collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1
func.func @labels(%x: tensor<8x5xf32>, %l: tensor<8xi32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %eight = stablehlo.constant dense<8> : tensor<8xi32>
  %n = stablehlo.iota dim = 0 : tensor<8xi32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<i32>) -> tensor<8xi32>
  %negative = stablehlo.compare LT, %n, %zeros, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
  %end = stablehlo.add %n, %eight : tensor<8xi32>
  %number = stablehlo.select %negative, %end, %n : tensor<8xi1>, tensor<8xi32>
  %c = stablehlo.broadcast_in_dim %number, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %r = stablehlo.reshape %l : (tensor<8xi32>) -> tensor<8x1xi32>
  %i = stablehlo.concatenate %c, %r, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x5xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// Its gradient: numbers that are a constant, and a scatter.
// CHECK-LABEL: func.func @gradient
// CHECK-SAME: %[[X:.*]]: tensor<4x5xf32>, %[[L:.*]]: tensor<4x1xi32>, %[[G:.*]]: tensor<4xf32>
// CHECK: "stablehlo.scatter"(%[[X]], %[[L]], %[[G]])
// CHECK-SAME: inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1
func.func @gradient(%x: tensor<4x5xf32>, %l: tensor<4x1xi32>, %g: tensor<4xf32>) -> tensor<4x5xf32> {
  %n = stablehlo.constant dense<[[0], [1], [2], [3]]> : tensor<4x1xi32>
  %i = stablehlo.concatenate %n, %l, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %0 = "stablehlo.scatter"(%x, %i, %g) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4x5xf32>, tensor<4x2xi32>, tensor<4xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// logits[arange(4)[:, None], arange(3), labels]: examples and positions.
// CHECK-LABEL: func.func @positions
// CHECK-SAME: %[[X:.*]]: tensor<4x3x5xf32>, %[[L:.*]]: tensor<4x3x1xi32>
// CHECK: "stablehlo.gather"(%[[X]], %[[L]])
// CHECK-SAME: collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 2
func.func @positions(%x: tensor<4x3x5xf32>, %l: tensor<4x3x1xi32>) -> tensor<4x3xf32> {
  %n = stablehlo.iota dim = 0 : tensor<4xi32>
  %p = stablehlo.iota dim = 0 : tensor<3xi32>
  %examples = stablehlo.broadcast_in_dim %n, dims = [0] : (tensor<4xi32>) -> tensor<4x3x1xi32>
  %positions = stablehlo.broadcast_in_dim %p, dims = [1] : (tensor<3xi32>) -> tensor<4x3x1xi32>
  %i = stablehlo.concatenate %examples, %positions, %l, dim = 2 : (tensor<4x3x1xi32>, tensor<4x3x1xi32>, tensor<4x3x1xi32>) -> tensor<4x3x3xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x3x5xf32>, tensor<4x3x3xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
