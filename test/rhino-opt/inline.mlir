// `inline` replaces calls, which needs an extension that the context registers; roles on @main survive it.
// RUN: rhino-opt %s --inline --symbol-dce | filecheck %s

// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {rhino.role = "batch"})
// CHECK-NEXT: %[[Y:.*]] = stablehlo.maximum %[[X]], %[[X]]
// CHECK-NEXT: return %[[Y]]
// CHECK-NOT: func.func
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %0 = func.call @relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @relu(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.maximum %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
