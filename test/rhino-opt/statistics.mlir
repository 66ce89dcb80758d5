// The statistics are what Python passes count.
// RUN: rhino-opt %s --rhino-classify-args --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s

// CHECK: Pass statistics report
// CHECK: 'rhino-classify-args' Pass
// CHECK-NEXT: (S) {{ *}}1 kept
// CHECK-NEXT: (S) {{ *}}2 other
func.func @main(%a: tensor<4xf32> {rhino.role = "param"}, %b: tensor<f32>, %c: tensor<i32>) {
  return
}
