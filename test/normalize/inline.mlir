// rhino-inline copies a callee complete, also where it calls others, has regions, or gives several results, and notes
// both places in the location. Copies are what MLIR's own pass makes.
// RUN: rhino-opt %s --rhino-inline --symbol-dce | filecheck %s
// RUN: rhino-opt %s --rhino-inline --symbol-dce --canonicalize -o %t.ours
// RUN: rhino-opt %s --inline --symbol-dce --canonicalize -o %t.theirs
// RUN: diff %t.ours %t.theirs
// RUN: rhino-opt %s --rhino-inline --mlir-print-debuginfo | filecheck %s --check-prefix=LOC

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32> {rhino.role = "batch"})
// CHECK: %[[ZERO:.*]] = stablehlo.constant
// CHECK: %[[A:.*]] = stablehlo.maximum %[[X]], %[[ZERO]]
// CHECK: %[[N:.*]] = stablehlo.negate %[[A]]
// CHECK: stablehlo.while
// CHECK: stablehlo.compare
// CHECK: stablehlo.maximum
// CHECK: stablehlo.add %{{.*}}, %[[N]]
// CHECK: return %{{.*}}, %[[X]]
// CHECK-NOT: func.func
// LOC-DAG: #[[CALLEE:.*]] = loc("relu.py":3:1)
// LOC-DAG: #[[CALL:.*]] = loc("both.py":7:1)
// LOC-DAG: loc(callsite(#[[CALLEE]] at #[[CALL]]))
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %0:2 = func.call @both(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %c = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%i = %c, %s = %0#0) : tensor<i32>, tensor<4xf32>
   cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    %3 = func.call @relu(%s) : (tensor<4xf32>) -> tensor<4xf32>
    %4 = stablehlo.add %3, %0#0 : tensor<4xf32>
    stablehlo.return %2, %4 : tensor<i32>, tensor<4xf32>
  }
  return %1#1, %0#1 : tensor<4xf32>, tensor<4xf32>
}
func.func private @both(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = func.call @relu(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("both.py":7:1)
  %1 = stablehlo.negate %0 : tensor<4xf32>
  return %1, %x : tensor<4xf32>, tensor<4xf32>
}
func.func private @relu(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0 = stablehlo.maximum %x, %zero : tensor<4xf32> loc("relu.py":3:1)
  return %0 : tensor<4xf32>
}
