// A remark is printed with its source line, does not fail the run, and the module still comes out.
// RUN: rhino-opt %s --rhino-classify-args=explain=true > %t 2> %t.err
// RUN: filecheck %s --input-file %t
// RUN: filecheck %s --check-prefix=REMARK --input-file %t.err
// RUN: rhino-opt %s --rhino-classify-args=explain=true --verify-diagnostics

// CHECK: rhino.role = "other"
// REMARK: warnings.mlir:10:17: remark: other: scalar
// expected-remark @+1 {{other: scalar}}
func.func @main(%x: tensor<i32>) -> tensor<i32> {
  return %x : tensor<i32>
}
