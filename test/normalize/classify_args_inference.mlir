// Without donation, in a function that returns no state: what is used as a weight is a parameter.
// RUN: rhino-opt %s --rhino-classify-args --split-input-file | filecheck %s

// Embedding table, positions (broadcast along a new leading dimension), tokens, and a head.
// CHECK: func.func @main
// CHECK-SAME: tensor<100x8xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<6x8xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<8x100xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<4x6xi32> {rhino.role = "batch"}
func.func @main(%table: tensor<100x8xf32>, %positions: tensor<6x8xf32>, %head: tensor<8x100xf32>, %tokens: tensor<4x6xi32>) -> tensor<4x6x100xf32> {
  %i = stablehlo.reshape %tokens : (tensor<4x6xi32>) -> tensor<4x6x1xi32>
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 8>}> : (tensor<100x8xf32>, tensor<4x6x1xi32>) -> tensor<4x6x8xf32>
  %1 = stablehlo.broadcast_in_dim %positions, dims = [1, 2] : (tensor<6x8xf32>) -> tensor<4x6x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<4x6x8xf32>
  %3 = stablehlo.dot_general %2, %head, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x100xf32>) -> tensor<4x6x100xf32>
  return %3 : tensor<4x6x100xf32>
}

// -----

// A residual layer returns something made of its input, of the same type; the input is still no state.
// CHECK: func.func @main
// CHECK-SAME: tensor<8x8xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%w: tensor<8x8xf32>, %x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.add %x, %0 : tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}

// -----

// Without any weight there is no state either, though the output has the type of the input.
// CHECK: func.func @main
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = stablehlo.tanh %x : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
