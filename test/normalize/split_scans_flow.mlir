// What has the dimension of layers is cut wherever it flows, before and after the loops; @main keeps its type.
// RUN: rhino-opt %s --split-input-file --rhino-split-scans=count=2 --canonicalize | filecheck %s

// An element-wise update: each operation is done once per piece, the scalar is broadcast to both, and the result is put
// together where it is returned. The update reads the argument through the same slices as the loop.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:.*]]: tensor<4x8xf32> {{.*}}, %[[X:.*]]: tensor<8xf32> {{.*}}, %[[RATE:.*]]: tensor<f32>
// CHECK-DAG: %[[W0:.*]] = stablehlo.slice %[[W]] [0:2, 0:8]
// CHECK-DAG: %[[W1:.*]] = stablehlo.slice %[[W]] [2:4, 0:8]
// CHECK: stablehlo.while
// CHECK: stablehlo.dynamic_slice %[[W0]]
// CHECK: stablehlo.while
// CHECK: stablehlo.dynamic_slice %[[W1]]
// CHECK-DAG: %[[B0:.*]] = stablehlo.broadcast_in_dim %[[RATE]], dims = [] : (tensor<f32>) -> tensor<2x8xf32>
// CHECK-DAG: %[[B1:.*]] = stablehlo.broadcast_in_dim %[[RATE]], dims = [] : (tensor<f32>) -> tensor<2x8xf32>
// CHECK-DAG: %[[N0:.*]] = stablehlo.multiply %[[W0]], %[[B0]] : tensor<2x8xf32>
// CHECK-DAG: %[[N1:.*]] = stablehlo.multiply %[[W1]], %[[B1]] : tensor<2x8xf32>
// CHECK: %[[N:.*]] = stablehlo.concatenate %[[N0]], %[[N1]], dim = 0
// CHECK-NEXT: return %{{.*}}, %[[N]]
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"},
                %rate: tensor<f32> {rhino.role = "other"}) -> (tensor<8xf32>, tensor<4x8xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %4 = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %5 = stablehlo.multiply %w, %4 : tensor<4x8xf32>
  return %r#1, %5 : tensor<8xf32>, tensor<4x8xf32>
}

// -----

// Reductions over the layers: one per piece. A sum of such sums is taken per piece first, so that one number per piece
// is left to combine, and what has no layers is added last.
// CHECK-LABEL: func.func @main
// CHECK: %[[Z:.*]] = stablehlo.constant dense<0.0
// CHECK: %[[A0:.*]] = stablehlo.reduce(%{{.*}} init: %[[Z]]) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>
// CHECK: %[[A1:.*]] = stablehlo.reduce(%{{.*}} init: %[[Z]]) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>
// CHECK: %[[B0:.*]] = stablehlo.reduce(%{{.*}} init: %[[Z]]) applies stablehlo.add across dimensions = [1, 0] : (tensor<8x2xf32>
// CHECK: %[[B1:.*]] = stablehlo.reduce(%{{.*}} init: %[[Z]]) applies stablehlo.add across dimensions = [1, 0] : (tensor<8x2xf32>
// CHECK: %[[C:.*]] = stablehlo.reduce(%{{.*}} init: %[[Z]]) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>
// CHECK: %[[S0:.*]] = stablehlo.add %[[A0]], %[[B0]] : tensor<f32>
// CHECK: %[[S1:.*]] = stablehlo.add %[[A1]], %[[B1]] : tensor<f32>
// CHECK: %[[S:.*]] = stablehlo.add %[[S0]], %[[S1]] : tensor<f32>
// CHECK: %[[T:.*]] = stablehlo.add %[[S]], %[[C]] : tensor<f32>
// CHECK: %[[NORM:.*]] = stablehlo.sqrt %[[T]]
// CHECK: return %[[NORM]]
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %4 = stablehlo.multiply %w, %w : tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
  %6 = stablehlo.transpose %w, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [1, 0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %8 = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %9 = stablehlo.add %5, %7 : tensor<f32>
  %10 = stablehlo.add %9, %8 : tensor<f32>
  %11 = stablehlo.sqrt %10 : tensor<f32>
  return %11 : tensor<f32>
}

// -----

// A constant, the number of each layer, and a merged dimension are cut too: layer i of [4, 8] is elements 8 i of [32].
// CHECK-LABEL: func.func @main
// CHECK-DAG: %[[K0:.*]] = stablehlo.constant dense<[1.0{{.*}}, 2.0{{.*}}]> : tensor<2xf32>
// CHECK-DAG: %[[K1:.*]] = stablehlo.constant dense<[3.0{{.*}}, 4.0{{.*}}]> : tensor<2xf32>
// CHECK-DAG: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<2x8xi32>
// CHECK: stablehlo.while
// CHECK: stablehlo.while
// CHECK: %[[I0:.*]] = stablehlo.iota dim = 0 : tensor<2x8xi32>
// CHECK: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<2x8xi32>
// CHECK: %[[I1:.*]] = stablehlo.add %[[I]], %[[TWO]]
// CHECK: stablehlo.convert %[[I0]]
// CHECK: stablehlo.convert %[[I1]]
// CHECK: stablehlo.broadcast_in_dim %[[K0]], dims = [0]
// CHECK: stablehlo.broadcast_in_dim %[[K1]], dims = [0]
// CHECK: %[[F0:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x8xf32>) -> tensor<16xf32>
// CHECK: %[[F1:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x8xf32>) -> tensor<16xf32>
// CHECK: stablehlo.concatenate %[[F0]], %[[F1]], dim = 0 : (tensor<16xf32>, tensor<16xf32>) -> tensor<32xf32>
// CHECK-NEXT: return
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> (tensor<8xf32>, tensor<32xf32>) {
  %rates = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %4 = stablehlo.iota dim = 0 : tensor<4x8xi32>
  %5 = stablehlo.convert %4 : (tensor<4x8xi32>) -> tensor<4x8xf32>
  %6 = stablehlo.broadcast_in_dim %rates, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %7 = stablehlo.multiply %w, %5 : tensor<4x8xf32>
  %8 = stablehlo.multiply %7, %6 : tensor<4x8xf32>
  %9 = stablehlo.reshape %8 : (tensor<4x8xf32>) -> tensor<32xf32>
  return %r#1, %9 : tensor<8xf32>, tensor<32xf32>
}

// -----

// A sort along the layers needs all of them: they are put together for it, and its result is cut for those who take
// pieces. A result that is an argument is returned as it is.
// CHECK-LABEL: func.func @main
// CHECK: %[[M0:.*]] = stablehlo.negate %{{.*}} : tensor<2x8xf32>
// CHECK: %[[M1:.*]] = stablehlo.negate %{{.*}} : tensor<2x8xf32>
// CHECK: %[[M:.*]] = stablehlo.concatenate %[[M0]], %[[M1]], dim = 0
// CHECK: %[[S:.*]] = "stablehlo.sort"(%[[M]])
// CHECK-DAG: %[[S0:.*]] = stablehlo.slice %[[S]] [0:2, 0:8]
// CHECK-DAG: %[[S1:.*]] = stablehlo.slice %[[S]] [2:4, 0:8]
// CHECK-DAG: stablehlo.add %{{.*}}, %[[S0]]
// CHECK-DAG: stablehlo.add %{{.*}}, %[[S1]]
// CHECK: return %arg0
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> (tensor<4x8xf32>, tensor<8xf32>, tensor<4x8xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %4 = stablehlo.negate %w : tensor<4x8xf32>
  %5 = "stablehlo.sort"(%4) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = stablehlo.add %w, %5 : tensor<4x8xf32>
  return %w, %r#1, %6 : tensor<4x8xf32>, tensor<8xf32>, tensor<4x8xf32>
}

// -----

// What moves elements but not layers is done per piece, with what its attributes say of the dimension: slices and gathers
// that take it whole, pads that leave it alone, batched products. A product that sums over the layers is one per piece.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while
// CHECK: stablehlo.while
// CHECK-DAG: %[[W0:.*]] = stablehlo.custom_call @annotate_device_placement(%{{.*}}) : (tensor<2x8xf32>) -> tensor<2x8xf32>
// CHECK-DAG: stablehlo.slice %{{.*}} [0:2, 0:4] : (tensor<2x8xf32>) -> tensor<2x4xf32>
// CHECK-DAG: stablehlo.pad %{{.*}} : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x8xf32>
// CHECK-DAG: stablehlo.dynamic_slice %{{.*}} sizes = [2, 4] : (tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
// CHECK-DAG: slice_sizes = array<i64: 2, 1>{{.*}} : (tensor<2x8xf32>, tensor<4x1xi32>) -> tensor<2x4xf32>
// CHECK-DAG: stablehlo.dot_general %{{.*}} batching_dims = [0] x [0]{{.*}} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4x4xf32>
// CHECK-DAG: stablehlo.dot_general %{{.*}} contracting_dims = [0] x [0]{{.*}} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<4x4xf32>
// CHECK: stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<2x4x4xf32>, tensor<2x4x4xf32>)
// CHECK-NEXT: stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<2x8xf32>, tensor<2x8xf32>)
// CHECK-NEXT: return
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"},
                %ids: tensor<4x1xi32> {rhino.role = "batch"})
    -> (tensor<8xf32>, tensor<4x4x4xf32>, tensor<4x8xf32>, tensor<4x4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %4 = stablehlo.custom_call @annotate_device_placement(%w) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = stablehlo.slice %4 [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %6 = stablehlo.pad %5, %zero, low = [0, 4], high = [0, 0], interior = [0, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x8xf32>
  %7 = stablehlo.dynamic_slice %4, %c0, %c4, sizes = [4, 4] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
  %8 = "stablehlo.gather"(%4, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1],
      start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 4, 1>}>
      : (tensor<4x8xf32>, tensor<4x1xi32>) -> tensor<4x4xf32>
  %9 = stablehlo.dot_general %7, %8, batching_dims = [0] x [0], contracting_dims = [] x [] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4x4xf32>
  %10 = stablehlo.dot_general %7, %8, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r#1, %9, %6, %10 : tensor<8xf32>, tensor<4x4x4xf32>, tensor<4x8xf32>, tensor<4x4xf32>
}
