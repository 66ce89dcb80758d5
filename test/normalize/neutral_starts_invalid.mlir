// It has no options. What has no neutral element, and dynamic shapes, which nothing plans, stay.
// RUN: not rhino-opt %s --rhino-neutral-starts=kinds=add 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: rhino-opt %s --rhino-neutral-starts | filecheck %s

// OPTION: 'kinds'

// CHECK-LABEL: func.func @exponents
// CHECK-SAME: %[[X:.*]]: tensor<8xf8E8M0FNU>, %[[S:.*]]: tensor<f8E8M0FNU>
// CHECK: stablehlo.reduce(%[[X]] init: %[[S]]) applies stablehlo.add
func.func @exponents(%x: tensor<8xf8E8M0FNU>, %start: tensor<f8E8M0FNU>) -> tensor<f8E8M0FNU> {
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0] : (tensor<8xf8E8M0FNU>, tensor<f8E8M0FNU>) -> tensor<f8E8M0FNU>
  return %0 : tensor<f8E8M0FNU>
}

// CHECK-LABEL: func.func @dynamic
// CHECK-SAME: %[[X:.*]]: tensor<8x?xf32>, %[[S:.*]]: tensor<f32>
// CHECK: stablehlo.reduce(%[[X]] init: %[[S]]) applies stablehlo.add
func.func @dynamic(%x: tensor<8x?xf32>, %start: tensor<f32>) -> tensor<?xf32> {
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0] : (tensor<8x?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func @finite
// CHECK-SAME: %[[X:.*]]: tensor<8xf8E4M3FN>, %[[S:.*]]: tensor<f8E4M3FN>
// CHECK: stablehlo.reduce(%[[X]] init: %[[S]]) applies stablehlo.maximum
func.func @finite(%x: tensor<8xf8E4M3FN>, %start: tensor<f8E4M3FN>) -> tensor<f8E4M3FN> {
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf8E4M3FN>, tensor<f8E4M3FN>) -> tensor<f8E4M3FN>
  return %0 : tensor<f8E4M3FN>
}
