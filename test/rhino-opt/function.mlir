// --function has another function be @main, calls included; a former @main becomes private.
// RUN: rhino-opt %s --function=step | filecheck %s
// RUN: not rhino-opt %s --function=stp 2>&1 | filecheck %s --check-prefix=NONE

// NONE: rhino-opt: error: the module has no function @stp with a body (its public functions: @step, @main)

// CHECK-LABEL: func.func @main(
// CHECK: call @layer
func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @layer(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CHECK-LABEL: func.func private @layer(
// CHECK: call @main_1
func.func private @layer(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @main(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CHECK-LABEL: func.func private @main_0(
func.func private @main_0(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// CHECK-LABEL: func.func private @main_1(
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
