// With -after-change, a pass that changed nothing prints nothing.
// RUN: rhino-opt %s --rhino-verify --rhino-classify-args --mlir-print-ir-after-all --mlir-print-ir-after-change -o /dev/null 2>&1 | filecheck %s

// CHECK-NOT: IR Dump After rhino-verify
// CHECK: IR Dump After rhino-classify-args
func.func @main(%x: tensor<4xf32>) {
  return
}
