// What a loop copies layer by layer is read from where it was.
// RUN: rhino-opt %s --split-input-file --rhino-forward-copies --canonicalize | filecheck %s

// nnx.scan returns parameters as it was given them: the loop carries one array less, and the update reads the argument.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:.*]]: tensor<3x4xf32>, %[[X:.*]]: tensor<4xf32>
// CHECK: %[[R:.*]]:4 = stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
// CHECK: %[[NEW:.*]] = stablehlo.negate %[[W]]
// CHECK: return %[[R]]#1, %[[NEW]], %[[R]]#3
func.func @main(%w: tensor<3x4xf32>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %r:5 = stablehlo.while(%i = %zero, %h = %x, %v = %w, %copy = %zeros, %rows = %zeros) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %v, %i, %first, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4xf32>) -> tensor<4xf32>
    %2:2 = stablehlo.optimization_barrier %h, %1 : tensor<4xf32>, tensor<4xf32>
    %3 = stablehlo.multiply %2#0, %2#1 : tensor<4xf32>
    %4 = stablehlo.broadcast_in_dim %2#1, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %5 = stablehlo.dynamic_update_slice %copy, %4, %i, %first : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %6 = stablehlo.reshape %3 : (tensor<4xf32>) -> tensor<1x4xf32>
    %7 = stablehlo.dynamic_update_slice %rows, %6, %i, %first : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %3, %v, %5, %7 : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
  %new = stablehlo.negate %r#3 : tensor<3x4xf32>
  return %r#1, %new, %r#4 : tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
}

// -----

// Two trips for three layers; the last layer stays as it was, so this is no copy.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<3x4xf32>, tensor<3x4xf32>
// CHECK: return %[[R]]#2
func.func @main(%w: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %r:3 = stablehlo.while(%i = %zero, %v = %w, %copy = %zeros) : tensor<i32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %two = stablehlo.constant dense<2> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %two, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %v, %i, %first, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %1 = stablehlo.dynamic_update_slice %copy, %0, %i, %first : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %v, %1 : tensor<i32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
  return %r#2 : tensor<3x4xf32>
}
