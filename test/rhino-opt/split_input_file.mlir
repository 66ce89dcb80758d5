// The parts are processed one by one: the same symbol may be defined in each, and an error in one does not stop the next.
// RUN: not rhino-opt %s --split-input-file > %t 2> %t.err
// RUN: filecheck %s --input-file %t
// RUN: filecheck %s --check-prefix=ERROR --input-file %t.err

// CHECK: func.func @main() {
// CHECK: // -----
// CHECK: func.func @main(%{{.*}}: tensor<4xf32>)
func.func @main() {
  return
}

// -----

// Lines count from the start of the file.
// ERROR: split_input_file.mlir:20:10: error: use of undeclared SSA value name
func.func @main() -> tensor<4xf32> {
  // The next line is 20.

  return %undefined    : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) {
  return
}
