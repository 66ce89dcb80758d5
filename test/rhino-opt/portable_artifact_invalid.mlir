// What a version of StableHLO does not have is one line, with its place; so are artifacts cut short.
// RUN: not rhino-opt %s --emit-portable-artifact=0.9.0 2>&1 | filecheck %s
// RUN: rhino-opt %s --emit-portable-artifact | %python -c "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[:60])" > %t
// RUN: not rhino-opt %t 2>&1 | filecheck %s --check-prefix=SHORT

// CHECK: rhino-opt: error: the module cannot be written for StableHLO 0.9.0: {{.*}}portable_artifact_invalid.mlir":9:1 (give a later version, up to {{[0-9.]+}})

// SHORT: error:
func.func @main(%x: tensor<4xf4E2M1FN>) -> tensor<4xf4E2M1FN> {
  return %x : tensor<4xf4E2M1FN>
}
