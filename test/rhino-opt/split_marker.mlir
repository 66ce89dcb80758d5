// The marker between parts can be chosen; the output is joined with the same one.
// RUN: rhino-opt %s --split-input-file="// next" | filecheck %s

// CHECK: func.func @main
// CHECK: {{^}}// next
// CHECK: func.func @main
func.func @main() {
  return
}
// next
func.func @main() {
  return
}
