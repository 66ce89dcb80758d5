// State that stays on the devices, and state that another program keeps on the hosts.
// RUN: rhino-opt %s --rhino-offload --split-input-file --verify-diagnostics | filecheck %s

// LAMB: the update is scaled by a norm of its own, so it cannot be done at once.
// CHECK: module @norm
// CHECK-NOT: pinned_host
module @norm {
  // expected-remark @+1 {{no optimizer state can be kept in the memory of the host}}
  func.func @main(%w: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %m: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}, %g: tensor<1024x1024xf32> {rhino.role = "batch"}) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %n = stablehlo.add %m, %g : tensor<1024x1024xf32>
    %s = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<1024x1024xf32>, tensor<f32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<1024x1024xf32>
    %u = stablehlo.divide %n, %b : tensor<1024x1024xf32>
    %new = stablehlo.subtract %w, %u : tensor<1024x1024xf32>
    return %new, %n : tensor<1024x1024xf32>, tensor<1024x1024xf32>
  }
}

// -----

// Not donated, and read by a product.
// CHECK: module @read
// CHECK-NOT: pinned_host
module @read {
  // expected-remark @+1 {{no optimizer state can be kept in the memory of the host}}
  func.func @main(%m: tensor<1024x1024xf32> {rhino.role = "opt_state"}, %p: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}, %g: tensor<1024x1024xf32>) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
    %n = stablehlo.add %m, %g : tensor<1024x1024xf32>
    %d = stablehlo.dot_general %p, %g, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %q = stablehlo.add %p, %d : tensor<1024x1024xf32>
    return %n, %q : tensor<1024x1024xf32>, tensor<1024x1024xf32>
  }
}

// -----

// An evaluation reads what a training step keeps there: it comes at once. What it returns in its place goes back.
// CHECK: module @given
// CHECK: func.func @main(%[[M:.*]]: tensor<4x4xf32> {mhlo.memory_kind = "pinned_host", tf.aliasing_output = 0 : i32}
// CHECK-SAME: -> (tensor<4x4xf32> {mhlo.memory_kind = "pinned_host"}, tensor<f32>)
// CHECK: %[[HERE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[M]]) {{{.*}}"device"
// CHECK: stablehlo.reduce(%[[HERE]]
// CHECK: %[[BACK:.*]] = stablehlo.custom_call @annotate_device_placement(%[[HERE]]) {{{.*}}"pinned_host"
// CHECK: return %[[BACK]]
module @given {
  func.func @main(%m: tensor<4x4xf32> {rhino.hosted = true, tf.aliasing_output = 0 : i32}) -> (tensor<4x4xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %m, %s : tensor<4x4xf32>, tensor<f32>
  }
}
