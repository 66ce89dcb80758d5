// With -after-failure, only the pass that fails prints the module, as it left it.
// RUN: not rhino-opt %s --verify-each=false --rhino-classify-args --rhino-verify --mlir-print-ir-after-failure 2>&1 | filecheck %s

// The roles were written before the pass that failed.
// CHECK-NOT: IR Dump After rhino-classify-args
// CHECK: error: unknown attribute 'rhino.nothing'
// CHECK: IR Dump After rhino-verify Failed
// CHECK: func.func @main(%{{.*}}: tensor<4xf32> {rhino.role =
func.func @main(%x: tensor<4xf32>) attributes {rhino.nothing} {
  return
}
