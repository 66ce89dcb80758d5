// It has no options. What is several products, is multiplied as tf32, or as it is, stays.
// RUN: not rhino-opt %s --rhino-convert-operands=types=bf16 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: rhino-opt %s --rhino-convert-operands | filecheck %s

// OPTION: 'types'

// Three products of bfloat16 parts are nearly one of float32.
// CHECK-LABEL: func.func @parts
// CHECK-NOT: stablehlo.convert
func.func @parts(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 3, allow_imprecise_accumulation = false> : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// No tensor is of tf32.
// CHECK-LABEL: func.func @tf32
// CHECK-NOT: stablehlo.convert
func.func @tf32(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @narrow
// CHECK-NOT: stablehlo.convert
func.func @narrow(%a: tensor<8x8xbf16>, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>
  %1 = stablehlo.dot_general %b, %a, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xbf16>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
