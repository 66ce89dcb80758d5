// Sums over the batch that every example needs, taken from the micro-batch alone: only because this is asked for.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch="count=4 statistics=micro-batch" | filecheck %s

// Every example is scaled by a function of the mean. In the loop the mean is four times the part of it; the product of
// the second sum with this scale is what a gradient looks like, and takes the same scale. What is made of the mean alone
// is made after the loop, of the mean of all examples.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32> {rhino.role = "param"}, %[[OLD:[a-z0-9]+]]: tensor<4xf32>
func.func @main(%w: tensor<4xf32> {rhino.role = "param"}, %old: tensor<4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[LOOP:.*]]:3 = stablehlo.while(%{{.*}} = %{{.*}}, %[[MEANS:.*]] = %{{.*}}, %[[GRADS:.*]] = %{{.*}}) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64, statistics = "micro-batch"}}
  // CHECK: %[[H:.*]] = stablehlo.multiply %{{.*}}, %{{.*}} : tensor<2x4xf32>
  // CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[H]] init
  // CHECK: %[[MEAN:.*]] = stablehlo.divide %[[SUM]]
  // CHECK: %[[KEPT:.*]] = stablehlo.add %[[MEANS]], %[[MEAN]]
  // CHECK: %[[COUNT:.*]] = stablehlo.constant dense<4.000000e+00> : tensor<4xf32>
  // CHECK: %[[OWN:.*]] = stablehlo.multiply %[[MEAN]], %[[COUNT]]
  // CHECK: %[[SCALE:.*]] = stablehlo.exponential %[[OWN]] : tensor<4xf32>
  // CHECK: %[[EACH:.*]] = stablehlo.broadcast_in_dim %[[SCALE]], dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK: stablehlo.multiply %[[H]], %[[EACH]]
  // CHECK: %[[TOTAL:.*]] = stablehlo.reduce
  // CHECK: %[[GRAD:.*]] = stablehlo.multiply %[[TOTAL]], %[[SCALE]]
  // CHECK: stablehlo.add %[[GRADS]], %[[GRAD]]
  // CHECK: stablehlo.return
  // CHECK: }
  // CHECK-NEXT: %[[SQUARE:.*]] = stablehlo.multiply %[[LOOP]]#1, %[[LOOP]]#1
  // CHECK-NEXT: %[[NEW:.*]] = stablehlo.add %[[OLD]], %[[SQUARE]]
  // CHECK-NEXT: return %[[LOOP]]#2, %[[NEW]]
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.constant dense<8.0> : tensor<4xf32>
  %weights = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  %h = stablehlo.multiply %x, %weights : tensor<8x4xf32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %mean = stablehlo.divide %sum, %size : tensor<4xf32>
  %scale = stablehlo.exponential %mean : tensor<4xf32>
  %each = stablehlo.broadcast_in_dim %scale, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.multiply %h, %each : tensor<8x4xf32>
  %tanh = stablehlo.tanh %y : tensor<8x4xf32>
  %total = stablehlo.reduce(%tanh init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %gradient = stablehlo.multiply %total, %scale : tensor<4xf32>
  %square = stablehlo.multiply %mean, %mean : tensor<4xf32>
  %new = stablehlo.add %old, %square : tensor<4xf32>
  return %gradient, %new : tensor<4xf32>, tensor<4xf32>
}

// -----

// In a loop over layers: what row i is made of the sum of layer i is made after the loop, of the sums of all layers.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[ROWS:[a-z0-9]+]]: tensor<2x4xf32>
func.func @main(%rows: tensor<2x4xf32>, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> (tensor<8x4xf32>, tensor<2x4xf32>) {
  // CHECK: %[[LOOP:.*]]:3 = stablehlo.while(%{{.*}}) : tensor<i32>, tensor<2x4xf32>, tensor<2x4x4xf32> attributes {rhino.microbatches
  // CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %[[H:.*]] = %{{.*}}, %[[SUMS:.*]] = %{{.*}}) : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32> attributes {mhlo.frontend_attributes = {kept = "yes"}}
  // CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[H]] init
  // CHECK: %[[OWN:.*]] = stablehlo.multiply %[[SUM]], %{{.*}}
  // CHECK: stablehlo.broadcast_in_dim %[[OWN]], dims = [1]
  // CHECK-NOT: stablehlo.dynamic_slice
  // CHECK: %[[ROW:.*]] = stablehlo.reshape %[[SUM]] : (tensor<4xf32>) -> tensor<1x4xf32>
  // CHECK: stablehlo.dynamic_update_slice %[[SUMS]], %[[ROW]], %[[I]]
  // CHECK: %[[SQUARE:.*]] = stablehlo.multiply %[[LOOP]]#1, %[[LOOP]]#1 : tensor<2x4xf32>
  // CHECK: stablehlo.add %{{.*}}, %[[SQUARE]] : tensor<2x4xf32>
  // CHECK: return
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %out = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %r:3 = stablehlo.while(%i = %c0, %h = %x, %s = %out) : tensor<i32>, tensor<8x4xf32>, tensor<2x4xf32>
  attributes {mhlo.frontend_attributes = {kept = "yes"}} cond {
    %less = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %each = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
    %y = stablehlo.subtract %h, %each : tensor<8x4xf32>
    %cut = stablehlo.dynamic_slice %rows, %i, %c0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %old = stablehlo.reshape %cut : (tensor<1x4xf32>) -> tensor<4xf32>
    %square = stablehlo.multiply %sum, %sum : tensor<4xf32>
    %new = stablehlo.add %old, %square : tensor<4xf32>
    %row = stablehlo.broadcast_in_dim %new, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %t = stablehlo.dynamic_update_slice %s, %row, %i, %c0 : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %y, %t : tensor<i32>, tensor<8x4xf32>, tensor<2x4xf32>
  }
  return %r#1, %r#2 : tensor<8x4xf32>, tensor<2x4xf32>
}

// -----

// Gradients clipped by their norm are whole sums, and nothing is estimated.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  // CHECK: %[[LOOP:.*]]:2 = stablehlo.while
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64}}
  // CHECK-NOT: stablehlo.multiply
  // CHECK: stablehlo.return
  // CHECK: }
  // CHECK: stablehlo.multiply %[[LOOP]]#1, %[[LOOP]]#1
  // CHECK: stablehlo.divide %[[LOOP]]#1
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %g = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %square = stablehlo.multiply %g, %g : tensor<4xf32>
  %norm = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %each = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %clipped = stablehlo.divide %g, %each : tensor<4xf32>
  return %clipped : tensor<4xf32>
}

// -----

// A count made of the data alone needs no estimate: it is taken of the whole batch before the loop.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}, %m: tensor<8xf32> {rhino.role = "batch"}) -> tensor<f32> {
  // CHECK: %[[TOTAL:.*]] = stablehlo.reduce(%{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>
  // CHECK: stablehlo.while
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64}}
  // CHECK: stablehlo.broadcast_in_dim %[[TOTAL]], dims = [] : (tensor<f32>) -> tensor<2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %total = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %each = stablehlo.broadcast_in_dim %total, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %0 = stablehlo.divide %x, %each : tensor<8xf32>
  %1 = stablehlo.exponential %0 : tensor<8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
