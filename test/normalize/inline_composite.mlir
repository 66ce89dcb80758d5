// rhino-inline writes a composite as what it is composed of, also where that calls others.
// RUN: rhino-opt %s --rhino-inline --symbol-dce | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[X]]
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[N]]
// CHECK-NEXT: return %[[T]]
// CHECK-NOT: func.func
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.composite "mine.both" %x {composite_attributes = {n = 2 : i64}, decomposition = @both, version = 1 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func private @both(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @negated(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

func.func private @negated(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
