// The parts are processed one by one: the same symbol may be defined in each, and an error in one does not stop the next.
// RUN: not rhino-opt %s --split-input-file > %t 2> %t.err
// RUN: filecheck %s --input-file %t
// RUN: filecheck %s --check-prefix=ERROR --input-file %t.err

// What comes out has as many parts as what goes in: the one with the error is empty.

// CHECK: func.func @main() {
// CHECK: {{^}}// -----{{$}}
// CHECK-NEXT: {{^}}// -----{{$}}
// CHECK-NEXT: module {
// CHECK-NEXT: func.func @main(%{{.*}}: tensor<4xf32>)
func.func @main() {
  return
}

// -----

// Lines count from the start of the file.
// ERROR: split_input_file.mlir:24:10: error: use of undeclared SSA value name
func.func @main() -> tensor<4xf32> {
  // The error is on line 24.

  return %undefined    : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) {
  return
}

// -----

// What is wrong with a part as a whole stands where it begins.
// RUN: not rhino-opt %s --split-input-file --sdy-propagation-pipeline 2>&1 >/dev/null | filecheck %s --check-prefix=WHOLE
// WHOLE: split_input_file.mlir:35:1: error: 'sdy-propagation-pipeline' needs a function @main, and the module has none
func.func @f() {
  return
}

func.func @g() {
  return
}
