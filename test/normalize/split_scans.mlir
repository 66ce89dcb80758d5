// RUN: rhino-opt %s --split-input-file --rhino-split-scans=count=2 --canonicalize | filecheck %s

// The forward loop over stacked weights becomes two, over the first and the last two layers; the second starts from
// what the first made of x. Each reads its own slice of the argument, and writes its own piece of the saved activations.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[W:.*]]: tensor<4x8x8xf32> {{.*}}, %[[X:.*]]: tensor<2x8xf32>
// CHECK-DAG: %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<i32>
// CHECK-DAG: %[[N:.*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK-DAG: %[[W0:.*]] = stablehlo.slice %[[W]] [0:2, 0:8, 0:8]
// CHECK-DAG: %[[W1:.*]] = stablehlo.slice %[[W]] [2:4, 0:8, 0:8]
// CHECK-DAG: %[[Z0:.*]] = stablehlo.broadcast_in_dim {{.*}} -> tensor<2x2x8xf32>
// CHECK-DAG: %[[Z1:.*]] = stablehlo.broadcast_in_dim {{.*}} -> tensor<2x2x8xf32>
// CHECK: %[[R:.*]]:4 = stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %[[X]], %[[A:.*]] = %[[W0]], %[[Y:.*]] = %[[Z0]])
// CHECK: compare LT, %[[I]], %[[N]]
// CHECK: stablehlo.dynamic_slice %[[A]], %[[I]]
// CHECK: stablehlo.dynamic_update_slice %[[Y]], %{{.*}}, %[[I]]
// CHECK: stablehlo.add %[[I]], %[[ONE]]
// CHECK: %[[S:.*]]:4 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[R]]#1, %{{.*}} = %[[W1]], %{{.*}} = %[[Z1]])
// CHECK: %[[YS:.*]] = stablehlo.concatenate %[[R]]#3, %[[S]]#3, dim = 0
// CHECK-NEXT: return %[[S]]#1, %[[YS]]
func.func @main(%w: tensor<4x8x8xf32> {rhino.role = "param"}, %x: tensor<2x8xf32> {rhino.role = "batch"})
    -> (tensor<2x8xf32>, tensor<4x2x8xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ys = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x2x8xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %x, %ws = %w, %acts = %ys)
      : tensor<i32>, tensor<2x8xf32>, tensor<4x8x8xf32>, tensor<4x2x8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %ws, %i, %c0, %c0, sizes = [1, 8, 8]
        : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.dot_general %h, %1, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.reshape %2 : (tensor<2x8xf32>) -> tensor<1x2x8xf32>
    %4 = stablehlo.dynamic_update_slice %acts, %3, %i, %c0, %c0
        : (tensor<4x2x8xf32>, tensor<1x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2x8xf32>
    %5 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %5, %2, %ws, %4 : tensor<i32>, tensor<2x8xf32>, tensor<4x8x8xf32>, tensor<4x2x8xf32>
  }
  return %r#1, %r#3 : tensor<2x8xf32>, tensor<4x2x8xf32>
}

// -----

// In reverse: the first of the two loops has the last two layers, counted down within the piece. The layer number used
// for arithmetic is still that of the whole stack.
// CHECK-LABEL: func.func @main
// CHECK-DAG: %[[W0:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
// CHECK-DAG: %[[W1:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
// CHECK-DAG: %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<i32>
// CHECK-DAG: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK-DAG: %[[FOUR:.*]] = stablehlo.constant dense<4> : tensor<i32>
// CHECK: %[[R:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %arg1)
// CHECK: do {
// CHECK: %[[LOCAL:.*]] = stablehlo.subtract %[[ONE]], %[[I]]
// CHECK: %[[J:.*]] = stablehlo.subtract %[[FOUR]], %[[I]]
// CHECK: %[[LAYER:.*]] = stablehlo.subtract %[[J]], %[[ONE]]
// CHECK: stablehlo.dynamic_slice %[[W1]], %[[LOCAL]]
// CHECK: stablehlo.convert %[[LAYER]]
// CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %{{.*}} = %[[R]]#1)
// CHECK: do {
// CHECK: %[[TRIP:.*]] = stablehlo.add %[[K]], %[[TWO]]
// CHECK: %[[LOCAL2:.*]] = stablehlo.subtract %[[ONE]], %[[K]]
// CHECK: stablehlo.subtract %[[FOUR]], %[[TRIP]]
// CHECK: stablehlo.dynamic_slice %[[W0]], %[[LOCAL2]]
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.subtract %c4, %i : tensor<i32>
    %layer = stablehlo.subtract %j, %c1 : tensor<i32>
    %0 = stablehlo.dynamic_slice %w, %layer, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.convert %layer : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %4 = stablehlo.multiply %1, %3 : tensor<8xf32>
    %5 = stablehlo.add %h, %4 : tensor<8xf32>
    %6 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<8xf32>
  }
  return %r#1 : tensor<8xf32>
}
