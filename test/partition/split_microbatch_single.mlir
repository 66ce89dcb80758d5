// One micro-batch is the batch: whatever examples need of each other, the step runs in a loop of one iteration.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch=count=1 | filecheck %s

// Examples are compared with each other; the update, which is cheap, comes after the loop.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[W:.*]]: tensor<4x2xf32> {{.*}}, %[[X:.*]]: tensor<8x4xf32>
func.func @main(%w: tensor<4x2xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4x2xf32> {
  // CHECK: stablehlo.while{{.*}}rhino.microbatches = {count = 1 : i64}
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]]
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
  // CHECK: %[[PAIRS:.*]] = stablehlo.dot_general %[[Y]], %[[Y]]
  %pairs = stablehlo.dot_general %y, %y, contracting_dims = [1] x [1] : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x8xf32>
  // CHECK: %[[BACK:.*]] = stablehlo.dot_general %[[PAIRS]], %[[Y]]
  %back = stablehlo.dot_general %pairs, %y, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  // CHECK: %[[G:.*]] = stablehlo.dot_general %[[X]], %[[BACK]]
  // CHECK: stablehlo.add %{{.*}}, %[[G]]
  %g = stablehlo.dot_general %x, %back, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  // CHECK: stablehlo.return
  // CHECK: stablehlo.subtract %[[W]]
  %new = stablehlo.subtract %w, %g : tensor<4x2xf32>
  return %new : tensor<4x2xf32>
}

// -----

// A loop that reads the batch and ends when all examples say so is made again, and reads what the loop around it makes.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  // CHECK: stablehlo.while{{.*}}rhino.microbatches = {count = 1 : i64}
  // CHECK: %[[Y:.*]] = stablehlo.sine
  %y = stablehlo.sine %x : tensor<8xf32>
  // CHECK: stablehlo.while
  %0 = stablehlo.while(%z = %y) : tensor<8xf32>
    cond {
      %most = stablehlo.reduce(%z init: %zero) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
      %go = stablehlo.compare LT, %most, %one : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      // CHECK: stablehlo.add %{{.*}}, %[[Y]]
      %more = stablehlo.add %z, %y : tensor<8xf32>
      stablehlo.return %more : tensor<8xf32>
    }
  return %0 : tensor<8xf32>
}
