// Where the trees of the arguments are known, a tree is state as a whole: donation says nothing of the others.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// Parameters, donated or not.
// CHECK-SAME: %{{.*}}: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
// Momentum and the count of steps, not donated, and of the shapes of data and of a number.
// CHECK-SAME: %{{.*}}: tensor<8x8xf32> {rhino.role = "opt_state"},
// CHECK-SAME: %{{.*}}: tensor<i32> {rhino.role = "opt_state"},
// The batch, one leaf of which is returned by itself, scaled.
// CHECK-SAME: %{{.*}}: tensor<8x8xf32> {rhino.role = "batch"},
// CHECK-SAME: %{{.*}}: tensor<8x8xf32> {rhino.role = "batch"})
// CHECK-NOT: rhino.returned
func.func @main(%w: tensor<8x8xf32> {rhino.returned = {block = 0 : i64, results = [0]}, tf.aliasing_output = 0 : i32},
                %m: tensor<8x8xf32> {rhino.returned = {block = 1 : i64, results = [1]}},
                %n: tensor<i32> {rhino.returned = {block = 1 : i64, results = [2]}},
                %x: tensor<8x8xf32> {rhino.returned = {block = 2 : i64, results = []}},
                %y: tensor<8x8xf32> {rhino.returned = {block = 2 : i64, results = []}})
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<i32>, tensor<f32>, tensor<8x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %d = stablehlo.subtract %h, %y : tensor<8x8xf32>
  %loss = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %m1 = stablehlo.add %m, %g : tensor<8x8xf32>
  %w1 = stablehlo.subtract %w, %m1 : tensor<8x8xf32>
  %n1 = stablehlo.add %n, %one : tensor<i32>
  %x1 = stablehlo.add %x, %x : tensor<8x8xf32>
  return %w1, %m1, %n1, %loss, %x1 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<i32>, tensor<f32>, tensor<8x8xf32>
}
