// Calls of declarations cannot be replaced: they are left, and planning names them.
// RUN: rhino-opt %s --rhino-inline | filecheck %s
// RUN: not rhino-opt %s --rhino-auto=topology=dgx-h100:1 2>&1 | filecheck %s --check-prefix=ERROR

// ERROR: inline_left.mlir:{{[0-9]+}}:{{[0-9]+}}: error: call to @outside is not inlined

// CHECK-LABEL: func.func @main
// CHECK-NOT: call @wrap
// CHECK: call @outside
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @wrap(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @wrap(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @outside(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @outside(tensor<4xf32>) -> tensor<4xf32>
