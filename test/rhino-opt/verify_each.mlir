// The rhino dialect's verifier runs after each rhino pass, unless switched off.
// RUN: not rhino-opt %s --rhino-classify-args 2>&1 | filecheck %s
// RUN: rhino-opt %s --rhino-classify-args --verify-each=false | filecheck %s --check-prefix=OFF

// CHECK: verify_each.mlir:8:1: error: unknown attribute 'rhino.nothing' in the rhino dialect
// OFF: attributes {rhino.nothing}
// The function is on line 8.
func.func @main(%x: tensor<4xf32>) attributes {rhino.nothing} {
  return
}
