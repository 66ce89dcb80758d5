// The marker between parts can be chosen; the output is joined with the same one.
// RUN: rhino-opt %s --split-input-file="// next" | filecheck %s
// RUN: rhino-opt %s --split-input-file="// next" --output-split-marker="// over" | filecheck %s --check-prefix=OTHER

// CHECK: func.func @main
// CHECK: {{^}}// next
// CHECK: func.func @main
// OTHER: {{^}}// over
func.func @main() {
  return
}
// next
func.func @main() {
  return
}
