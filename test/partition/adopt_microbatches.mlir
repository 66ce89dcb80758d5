// The loop over micro-batches that a step has of its own is taken for that of a pipeline, whatever it carries besides sums.
// RUN: rhino-opt %s --split-input-file --rhino-adopt-microbatches | filecheck %s

// The batch and the weights are read from outside; the sum and the losses are carried; the counter is of type i32.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<16x4xf32>
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x8x16xf32>
func.func @main(%w: tensor<16x4xf32> {rhino.role = "param"}, %x: tensor<4x8x16xf32> {rhino.role = "batch"}) -> (tensor<16x4xf32>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i64>
  %c1 = stablehlo.constant dense<1> : tensor<i64>
  %c4 = stablehlo.constant dense<4> : tensor<i64>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %g0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
  %l0 = stablehlo.constant dense<0.0> : tensor<4xf32>
  // What is the same in every trip is computed once.
  // CHECK: %[[CAST:.*]] = stablehlo.convert %[[W]]
  // CHECK: %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}}, %[[L:.*]] = %{{.*}}) : tensor<i32>, tensor<16x4xf32>, tensor<4xf32> attributes {rhino.microbatches = {count = 4 : i64}}
  %0:5 = stablehlo.while(%xs = %x, %p = %w, %i = %c0, %g = %g0, %l = %l0) : tensor<4x8x16xf32>, tensor<16x4xf32>, tensor<i64>, tensor<16x4xf32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %c4 : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    // CHECK: %[[WIDE:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<i64>
    // CHECK: stablehlo.dynamic_slice %[[X]], %[[WIDE]], {{.*}} sizes = [1, 8, 16]
    %1 = stablehlo.dynamic_slice %xs, %i, %c0, %c0, sizes = [1, 8, 16] : (tensor<4x8x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<1x8x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.convert %p : (tensor<16x4xf32>) -> tensor<16x4xbf16>
    %4 = stablehlo.convert %3 : (tensor<16x4xbf16>) -> tensor<16x4xf32>
    %5 = stablehlo.dot_general %2, %4, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.dot_general %2, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    // CHECK: %[[DW:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [0] x [0]
    // CHECK: stablehlo.dynamic_update_slice %[[L]], %{{.*}}, %[[WIDE]]
    // CHECK: %[[SUM:.*]] = stablehlo.add %[[G]], %[[DW]]
    %7 = stablehlo.add %g, %6 : tensor<16x4xf32>
    %8 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %9 = stablehlo.reshape %8 : (tensor<f32>) -> tensor<1xf32>
    %10 = stablehlo.dynamic_update_slice %l, %9, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i64>) -> tensor<4xf32>
    %11 = stablehlo.add %i, %c1 : tensor<i64>
    stablehlo.return %xs, %p, %11, %7, %10 : tensor<4x8x16xf32>, tensor<16x4xf32>, tensor<i64>, tensor<16x4xf32>, tensor<4xf32>
  }
  // CHECK: stablehlo.subtract %[[W]], %[[LOOP]]#1
  %12 = stablehlo.subtract %0#1, %0#3 : tensor<16x4xf32>
  return %12, %0#4 : tensor<16x4xf32>, tensor<4xf32>
}

// -----

// A fori_loop that takes runs of examples: these become rows of the batch, so that a run can be sharded. What a sum
// starts from is added after the loop, once.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<16x4xf32>
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<32x16xf32>
func.func @main(%w: tensor<16x4xf32> {rhino.role = "param"}, %x: tensor<32x16xf32> {rhino.role = "batch"}) -> tensor<16x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %c8 = stablehlo.constant dense<8> : tensor<i32>
  // CHECK: %[[ROWS:.*]] = stablehlo.reshape %[[X]] : (tensor<32x16xf32>) -> tensor<4x8x16xf32>
  // CHECK: %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}}) : tensor<i32>, tensor<16x4xf32> attributes {rhino.microbatches
  // CHECK: stablehlo.dynamic_slice %[[ROWS]], %[[I]], %{{.*}}, %{{.*}}, sizes = [1, 8, 16]
  // CHECK: stablehlo.add %[[G]],
  %0:2 = stablehlo.while(%i = %c0, %g = %w) : tensor<i32>, tensor<16x4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %c4 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.multiply %i, %c8 : tensor<i32>
    %2 = stablehlo.dynamic_slice %x, %1, %c0, sizes = [8, 16] : (tensor<32x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
    %5 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.dot_general %2, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    %7 = stablehlo.add %g, %6 : tensor<16x4xf32>
    %11 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %11, %7 : tensor<i32>, tensor<16x4xf32>
  }
  // CHECK: %[[ALL:.*]] = stablehlo.add %[[W]], %[[LOOP]]#1
  // CHECK: return %[[ALL]]
  return %0#1 : tensor<16x4xf32>
}

// -----

// A key that every trip makes from the one before depends on no examples: a loop of its own makes them all before.
// CHECK-LABEL: func.func @main(
func.func @main(%w: tensor<16x4xf32> {rhino.role = "param"}, %x: tensor<4x8x16xf32> {rhino.role = "batch"}, %k: tensor<2xui32>) -> (tensor<16x4xf32>, tensor<2xui32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %u = stablehlo.constant dense<7> : tensor<2xui32>
  %g0 = stablehlo.constant dense<0.0> : tensor<16x4xf32>
  // CHECK: %[[KEYS:.*]]:3 = stablehlo.while(%{{.*}} = %{{.*}}, %[[KEY:.*]] = %{{.*}}, %[[KEPT:.*]] = %{{.*}}) : tensor<i32>, tensor<2xui32>, tensor<4x2xui32>
  // CHECK-NOT: dot_general
  // CHECK: %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %{{.*}}) : tensor<i32>, tensor<16x4xf32> attributes {rhino.microbatches
  // CHECK: stablehlo.dynamic_slice %[[KEYS]]#2, %[[I]], %{{.*}}, sizes = [1, 2]
  %0:3 = stablehlo.while(%i = %c0, %g = %g0, %key = %k) : tensor<i32>, tensor<16x4xf32>, tensor<2xui32>
  cond {
    %c = stablehlo.compare LT, %i, %c4 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %x, %i, %c0, %c0, sizes = [1, 8, 16] : (tensor<4x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.slice %key [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %4 = stablehlo.convert %3 : (tensor<1xui32>) -> tensor<1xf32>
    %noise = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<1xf32>) -> tensor<16x4xf32>
    %noisy = stablehlo.add %w, %noise : tensor<16x4xf32>
    %5 = stablehlo.dot_general %2, %noisy, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.dot_general %2, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    %7 = stablehlo.add %g, %6 : tensor<16x4xf32>
    %8 = stablehlo.multiply %key, %u : tensor<2xui32>
    %11 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %11, %7, %8 : tensor<i32>, tensor<16x4xf32>, tensor<2xui32>
  }
  // CHECK: return %[[LOOP]]#1, %[[KEYS]]#1
  return %0#1, %0#2 : tensor<16x4xf32>, tensor<2xui32>
}

// -----

// A loop over layers has nothing of the batch in every trip, and stays.
// CHECK-LABEL: func.func @main(
// CHECK-NOT: rhino.microbatches
func.func @main(%w: tensor<4x8x8xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x8xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<4x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %c4 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %w, %i, %c0, %c0, sizes = [1, 8, 8] : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.dot_general %h, %2, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %4 = stablehlo.add %h, %3 : tensor<4x8xf32>
    %5 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<4x8xf32>
  }
  return %0#1 : tensor<4x8xf32>
}

// -----

// A running mean is a sum: what a trip adds to it counts as often as the trips after it leave of it.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[MEAN:[a-z0-9]+]]: tensor<4xf32> {rhino.role = "opt_state"}
func.func @main(%w: tensor<16x4xf32> {rhino.role = "param"}, %x: tensor<3x8x16xf32> {rhino.role = "batch"}, %m: tensor<4xf32> {rhino.role = "opt_state"}) -> (tensor<16x4xf32>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  %g0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
  // CHECK: %[[WEIGHTS:.*]] = stablehlo.constant dense<[2.500000e-01, 5.000000e-01, 1.000000e+00]> : tensor<3xf32>
  // CHECK: %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}}) : tensor<i32>, tensor<16x4xf32>, tensor<4xf32> attributes {rhino.microbatches = {count = 3 : i64}}
  %0:3 = stablehlo.while(%i = %c0, %g = %g0, %s = %m) : tensor<i32>, tensor<16x4xf32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %x, %i, %c0, %c0, sizes = [1, 8, 16] : (tensor<3x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.dot_general %2, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    // CHECK: %[[NEW:.*]] = stablehlo.reduce
    %7 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.broadcast_in_dim %half, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %9 = stablehlo.multiply %8, %s : tensor<4xf32>
    // CHECK: stablehlo.dynamic_slice %[[WEIGHTS]], %[[I]], sizes = [1]
    // CHECK: %[[PART:.*]] = stablehlo.multiply %[[NEW]], %{{.*}} : tensor<4xf32>
    // CHECK: stablehlo.add %[[S]], %[[PART]]
    %10 = stablehlo.add %9, %7 : tensor<4xf32>
    %11 = stablehlo.add %g, %6 : tensor<16x4xf32>
    %12 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %12, %11, %10 : tensor<i32>, tensor<16x4xf32>, tensor<4xf32>
  }
  // What it started with has shrunk in every trip.
  // CHECK: %[[LEFT:.*]] = stablehlo.constant dense<1.250000e-01> : tensor<4xf32>
  // CHECK: %[[OLD:.*]] = stablehlo.multiply %[[MEAN]], %[[LEFT]]
  // CHECK: stablehlo.add %[[OLD]], %[[LOOP]]#2
  return %0#1, %0#2 : tensor<16x4xf32>, tensor<4xf32>
}
