// A scan over layers in the micro-batch: activations are carried in parts, and gradients as sums.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch=count=2 | filecheck %s

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<3x4x4xf32>
func.func @main(%w: tensor<3x4x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %g = stablehlo.constant dense<0.0> : tensor<3x4x4xf32>
  %unused = stablehlo.constant dense<1.0> : tensor<8x4xf32>
  // CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<3x4x4xf32> attributes {rhino.microbatches
  // The carry that nothing reads is gone; the weights are not carried by the outer loop.
  // CHECK: %[[LAYERS:.*]]:4 = stablehlo.while(%{{.*}} = %{{.*}}, %[[H:.*]] = %{{.*}}, %{{.*}} = %[[W]], %[[GS:.*]] = %{{.*}}) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  %0:5 = stablehlo.while(%i = %zero, %h = %x, %ws = %w, %gs = %g, %u = %unused) : tensor<i32>, tensor<8x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>, tensor<8x4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK: stablehlo.dot_general %[[H]], {{.*}} -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %h, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    // CHECK: %[[DW:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [0] x [0]
    %4 = stablehlo.dot_general %h, %3, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    // CHECK: stablehlo.dynamic_update_slice %[[GS]]
    %6 = stablehlo.dynamic_update_slice %gs, %5, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %3, %ws, %6, %u : tensor<i32>, tensor<8x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>, tensor<8x4xf32>
  }
  // CHECK: stablehlo.add %[[SUM]], %[[LAYERS]]#3
  // CHECK: %[[NEW:.*]] = stablehlo.subtract %[[W]],
  // CHECK: return %[[NEW]]
  %8 = stablehlo.subtract %w, %0#3 : tensor<3x4x4xf32>
  return %8 : tensor<3x4x4xf32>
}

// -----

// A call with an effect stays, in a loop that makes nothing else.
// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.custom_call @log(%{{.*}}) {has_side_effect = true}
// CHECK: attributes {rhino.microbatches
func.func @main(%w: tensor<3xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0 = stablehlo.while(%i = %zero) : tensor<i32>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    stablehlo.custom_call @log(%w) {has_side_effect = true} : (tensor<3xf32>) -> ()
    %1 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %1 : tensor<i32>
  }
  %2 = stablehlo.negate %x : tensor<8xf32>
  return %2 : tensor<8xf32>
}
