// --mlir-print-ir-before and -after take names, of Python and of C++ passes alike; other passes print nothing.
// RUN: rhino-opt %s --cse --rhino-classify-args --mlir-print-ir-before=rhino-classify-args --mlir-print-ir-after=cse,rhino-classify-args -o /dev/null 2>&1 | filecheck %s

// CHECK: IR Dump After cse
// CHECK: func.func @main(%{{.*}}: tensor<4xf32>)
// CHECK: IR Dump Before rhino-classify-args
// CHECK: func.func @main(%{{.*}}: tensor<4xf32>)
// CHECK: IR Dump After rhino-classify-args
// CHECK: func.func @main(%{{.*}}: tensor<4xf32> {rhino.role =
// CHECK-NOT: IR Dump
func.func @main(%x: tensor<4xf32>) {
  return
}
