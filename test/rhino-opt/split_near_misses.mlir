// A marker is a line of its own, indented or not. Lines that look like one divide nothing, and are told.
// RUN: rhino-opt %s --split-input-file 2> %t.err | filecheck %s
// RUN: filecheck %s --check-prefix=NEAR --input-file %t.err
// RUN: grep -c warning: %t.err | filecheck %s --check-prefix=COUNT
// COUNT: {{^3$}}

// CHECK: func.func @main() {
// CHECK: {{^}}// -----{{$}}
// CHECK-NEXT: module {
// CHECK-NEXT: func.func @main(%{{.*}}: tensor<4xf32>)
// CHECK-NOT: // -----
func.func @main() {
  return
}

  // ----- // with a remark

// NEAR: split_near_misses.mlir:19:1: warning: no split here: the line is not just '// -----'
// ----
// NEAR: split_near_misses.mlir:21:3: warning: no split here
  // --------------------
// NEAR: split_near_misses.mlir:23:1: warning: no split here
// ----- tail
// This one is far: // -----
func.func @main(%x: tensor<4xf32>) {
  return
}
