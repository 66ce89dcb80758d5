// rhino.role: what an argument is to training. All four values, and an argument without one.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: {rhino.role = "param"}
// CHECK-SAME: {rhino.role = "opt_state"}
// CHECK-SAME: {rhino.role = "batch"}
// CHECK-SAME: {rhino.role = "other"}
func.func @main(%a: tensor<4xf32> {rhino.role = "param"}, %b: tensor<4xf32> {rhino.role = "opt_state"},
                %c: tensor<4xf32> {rhino.role = "batch"}, %d: tensor<i32> {rhino.role = "other"}, %e: tensor<i32>) {
  return
}
