// -before-all and -after-all print around every pass. C++ pipelines show the passes inside them.
// RUN: rhino-opt %s --rhino-classify-args --mlir-print-ir-before-all -o /dev/null 2>&1 | filecheck %s --check-prefix=BEFORE
// RUN: rhino-opt %s --sdy-propagation-pipeline --rhino-verify --mlir-print-ir-after-all -o /dev/null 2>&1 | filecheck %s --check-prefix=AFTER

// BEFORE: IR Dump Before rhino-classify-args
// BEFORE-NOT: rhino.role
// AFTER: IR Dump After {{.*}}sdy-
// AFTER: IR Dump After {{.*}}sdy-user-priority-propagate
// AFTER: IR Dump After rhino-verify
func.func @main(%x: tensor<4xf32>) {
  return
}
