// A syntax error shows the place, the line and a caret under the column, once.
// RUN: not rhino-opt %s 2>&1 | filecheck %s --match-full-lines --strict-whitespace

//      CHECK:{{.*}}syntax_error_invalid.mlir:8:8: error: custom op 'stablehlo.frobnicate' is unknown{{.*}}
// CHECK-NEXT:  %0 = stablehlo.frobnicate %x : tensor<4xf32>
// CHECK-NEXT:       ^
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.frobnicate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
