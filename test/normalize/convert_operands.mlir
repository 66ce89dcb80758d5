// What the algorithm of a product rounds is rounded by an operation of its own, once for the products of a block.
// RUN: rhino-opt %s --rhino-convert-operands | filecheck %s

// CHECK-LABEL: func.func @scores
// CHECK-SAME: %[[G:.*]]: tensor<8x16xf32>, %[[K:.*]]: tensor<16x4xbf16>, %[[Q:.*]]: tensor<8x4xbf16>
// CHECK: %[[N:.*]] = stablehlo.convert %[[G]] : (tensor<8x16xf32>) -> tensor<8x16xbf16>
// CHECK-NEXT: stablehlo.dot_general %[[N]], %[[K]], {{.*}}algorithm = {{.*}} : (tensor<8x16xbf16>, tensor<16x4xbf16>) -> tensor<8x4xf32>
// CHECK-NEXT: stablehlo.dot_general %[[N]], %[[Q]], {{.*}} : (tensor<8x16xbf16>, tensor<8x4xbf16>) -> tensor<16x4xf32>
func.func @scores(%g: tensor<8x16xf32>, %k: tensor<16x4xbf16>, %q: tensor<8x4xbf16>) -> (tensor<8x4xf32>, tensor<16x4xf32>) {
  %0 = stablehlo.dot_general %g, %k, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x16xf32>, tensor<16x4xbf16>) -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %g, %q, contracting_dims = [0] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x16xf32>, tensor<8x4xbf16>) -> tensor<16x4xf32>
  return %0, %1 : tensor<8x4xf32>, tensor<16x4xf32>
}

// Both operands, to what each is multiplied as; in a loop where it is read.
// CHECK-LABEL: func.func @loop
// CHECK: stablehlo.while
// CHECK: do {
// CHECK: %[[A:.*]] = stablehlo.convert %{{.*}} : (tensor<4x4xf32>) -> tensor<4x4xf16>
// CHECK: %[[B:.*]] = stablehlo.convert %{{.*}} : (tensor<4x4xf64>) -> tensor<4x4xf16>
// CHECK: stablehlo.dot_general %[[A]], %[[B]]
func.func @loop(%a: tensor<4x4xf32>, %b: tensor<4x4xf64>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<4x4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dot_general %x, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f16, rhs_precision_type = f16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf64>) -> tensor<4x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %0 : tensor<i32>, tensor<4x4xf32>
  }
  return %r#1 : tensor<4x4xf32>
}
