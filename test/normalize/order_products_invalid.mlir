// It has no options. Products that are not kept, are smaller than what they are made of, have another reader, cannot
// come in that order, or are laid out, stay.
// RUN: not rhino-opt %s --rhino-order-products=kept=all 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: rhino-opt %s --rhino-order-products | filecheck %s

// OPTION: 'kept'

sdy.mesh @mesh = <["x"=2]>

// CHECK-LABEL: func.func @only_read
// CHECK: stablehlo.dot_general %arg0, %arg1
func.func @only_read(%k: tensor<64x8xf32>, %q: tensor<64x8xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}

// CHECK-LABEL: func.func @small
// CHECK: stablehlo.dot_general %arg0, %arg1
func.func @small(%k: tensor<8x64xf32>, %q: tensor<8x64xf32>, %stack: tensor<16x8xf32>, %i: tensor<i32>) -> tensor<16x8xf32> {
  %0 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.dynamic_update_slice %stack, %1, %i, %i : (tensor<16x8xf32>, tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<16x8xf32>
  return %2 : tensor<16x8xf32>
}

// CHECK-LABEL: func.func @read_twice
// CHECK: stablehlo.dot_general %arg0, %arg1
func.func @read_twice(%k: tensor<64x8xf32>, %q: tensor<64x8xf32>, %stack: tensor<128x64xf32>, %i: tensor<i32>) -> (tensor<128x64xf32>, tensor<64x64xf32>) {
  %0 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.dynamic_update_slice %stack, %1, %i, %i : (tensor<128x64xf32>, tensor<64x64xf32>, tensor<i32>, tensor<i32>) -> tensor<128x64xf32>
  return %2, %0 : tensor<128x64xf32>, tensor<64x64xf32>
}

// Dimensions of one operand between those of the other, or in front of the batch.
// CHECK-LABEL: func.func @between
// CHECK: stablehlo.dot_general %arg0, %arg1
// CHECK: stablehlo.dot_general %arg0, %arg1
func.func @between(%a: tensor<2x16x8x4xf32>, %b: tensor<2x16x4xf32>, %s: tensor<32x16x16x8xf32>, %t: tensor<64x8x16x16xf32>, %i: tensor<i32>) -> (tensor<32x16x16x8xf32>, tensor<64x8x16x16xf32>) {
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x16x8x4xf32>, tensor<2x16x4xf32>) -> tensor<2x16x8x16xf32>
  %1 = stablehlo.transpose %0, dims = [0, 1, 3, 2] : (tensor<2x16x8x16xf32>) -> tensor<2x16x16x8xf32>
  %2 = stablehlo.dynamic_update_slice %s, %1, %i, %i, %i, %i : (tensor<32x16x16x8xf32>, tensor<2x16x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<32x16x16x8xf32>
  %3 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x16x8x4xf32>, tensor<2x16x4xf32>) -> tensor<2x16x8x16xf32>
  %4 = stablehlo.transpose %3, dims = [1, 2, 0, 3] : (tensor<2x16x8x16xf32>) -> tensor<16x8x2x16xf32>
  %5 = stablehlo.dynamic_update_slice %t, %4, %i, %i, %i, %i : (tensor<64x8x16x16xf32>, tensor<16x8x2x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<64x8x16x16xf32>
  return %2, %5 : tensor<32x16x16x8xf32>, tensor<64x8x16x16xf32>
}

// CHECK-LABEL: func.func @apart
// CHECK: stablehlo.dot_general %arg0, %arg1
// CHECK: stablehlo.dot_general %arg0, %arg1
func.func @apart(%k: tensor<64x8xbf16>, %q: tensor<64x8xbf16>, %stack: tensor<128x64xf32>, %i: tensor<i32>) -> (tensor<128x64xf32>, tensor<128x64xf32>) {
  %0 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1], algorithm = <lhs_precision_type = f8E4M3FN, rhs_precision_type = f8E5M2, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<64x8xbf16>, tensor<64x8xbf16>) -> tensor<64x64xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.dynamic_update_slice %stack, %1, %i, %i : (tensor<128x64xf32>, tensor<64x64xf32>, tensor<i32>, tensor<i32>) -> tensor<128x64xf32>
  %3 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<64x8xbf16>, tensor<64x8xbf16>) -> tensor<64x64xf32>
  %4 = stablehlo.transpose %3, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %5 = stablehlo.dynamic_update_slice %stack, %4, %i, %i : (tensor<128x64xf32>, tensor<64x64xf32>, tensor<i32>, tensor<i32>) -> tensor<128x64xf32>
  return %2, %5 : tensor<128x64xf32>, tensor<128x64xf32>
}
