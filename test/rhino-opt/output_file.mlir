// -o writes the file and prints nothing; after an error an existing file is left alone.
// RUN: rhino-opt %s -o %t | filecheck %s --check-prefix=NOTHING --allow-empty
// RUN: filecheck %s --input-file %t
// RUN: not rhino-opt %s --sdy-export-pipeline -o %t
// RUN: filecheck %s --input-file %t
// RUN: not rhino-opt %s -o %t.missing/folder/x.mlir 2>&1 | filecheck %s --check-prefix=UNWRITABLE

// NOTHING-NOT: func
// CHECK: func.func private @declared
// UNWRITABLE: error: cannot write '{{.*}}x.mlir': no such file or directory
func.func private @declared(tensor<4xf32>)
func.func @main() {
  return
}
