// Branches, barriers, and loops that are not split pass on pieces of what has the dimension of layers.
// RUN: rhino-opt %s --split-input-file --rhino-split-scans=count=2 --canonicalize | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-DAG: %[[W0:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
// CHECK-DAG: %[[W1:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
// CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %[[W0]], %[[W1]], %arg1
// CHECK: %[[C:.*]]:3 = "stablehlo.case"
// CHECK: stablehlo.return %[[B]]#2, %[[W0]], %[[W1]]
// CHECK: %[[N0:.*]] = stablehlo.negate %[[B]]#0
// CHECK: %[[N1:.*]] = stablehlo.negate %[[B]]#1
// CHECK: stablehlo.return %{{.*}}, %[[N0]], %[[N1]]
// CHECK: %[[R:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[V0:.*]] = %[[C]]#1, %[[V1:.*]] = %[[C]]#2)
// CHECK: %[[D0:.*]] = stablehlo.add %[[V0]], %[[V0]]
// CHECK: %[[D1:.*]] = stablehlo.add %[[V1]], %[[V1]]
// CHECK: stablehlo.return %{{.*}}, %[[D0]], %[[D1]]
// CHECK: %[[ALL:.*]] = stablehlo.concatenate %[[R]]#1, %[[R]]#2, dim = 0
// CHECK-NEXT: return %{{.*}}, %[[ALL]]
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"},
                %which: tensor<i32> {rhino.role = "other"}) -> (tensor<8xf32>, tensor<4x8xf32>) {
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
  %v, %y = stablehlo.optimization_barrier %w, %x : tensor<4x8xf32>, tensor<8xf32>
  %b:2 = "stablehlo.case"(%which) ({
    stablehlo.return %y, %w : tensor<8xf32>, tensor<4x8xf32>
  }, {
    %4 = stablehlo.negate %v : tensor<4x8xf32>
    stablehlo.return %r#1, %4 : tensor<8xf32>, tensor<4x8xf32>
  }) : (tensor<i32>) -> (tensor<8xf32>, tensor<4x8xf32>)
  %s:2 = stablehlo.while(%i = %which, %u = %b#1) : tensor<i32>, tensor<4x8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %4 = stablehlo.add %u, %u : tensor<4x8xf32>
    %5 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<4x8xf32>
  }
  return %b#0, %s#1 : tensor<8xf32>, tensor<4x8xf32>
}
