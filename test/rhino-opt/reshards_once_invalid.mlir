// Each run of the full sdy-insert-explicit-reshards adds its all-reduces again and makes the numbers wrong: once only.
// RUN: not rhino-opt %s --sdy-insert-explicit-reshards=enable-full-version=true --cse --sdy-insert-explicit-reshards=enable-full-version=true 2>&1 | filecheck %s
// RUN: rhino-opt %s --sdy-insert-explicit-reshards --sdy-insert-explicit-reshards | filecheck %s --check-prefix=PARTIAL

// CHECK: error: 'sdy-insert-explicit-reshards' must run once
// PARTIAL: func.func @main
func.func @main() {
  return
}
