// What a sum over the batch starts from is not in any micro-batch: it is added after the loop, once.
// RUN: rhino-opt %s --rhino-split-microbatch=count=4 --split-input-file | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<8xf32> {{.*}}, %[[S:.*]]: tensor<f32>
// CHECK: %[[LOOP:.*]]:{{[0-9]+}} = stablehlo.while
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add
// CHECK: stablehlo.return
// CHECK: %[[ALL:.*]] = stablehlo.add %[[S]], %[[LOOP]]#{{[0-9]}} : tensor<f32>
// CHECK: return %[[ALL]]
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}, %start: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// A product of the examples' products, from one.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.multiply
// CHECK: stablehlo.multiply %{{.*}}, %{{.*}} : tensor<f32>
// CHECK: return
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %one) applies stablehlo.multiply across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Counts kept from step to step: each micro-batch counts from zero, and the counts so far are added to the sum.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[SEEN:.*]]: tensor<5xi32>, %[[IDS:.*]]: tensor<8x1xi32>
// CHECK: %[[ZEROS:.*]] = stablehlo.constant dense<0> : tensor<5xi32>
// CHECK: %[[LOOP:.*]]:2 = stablehlo.while
// CHECK: "stablehlo.scatter"(%[[ZEROS]],
// CHECK: %[[ALL:.*]] = stablehlo.add %[[SEEN]], %[[LOOP]]#{{[0-9]}} : tensor<5xi32>
// CHECK: return %[[ALL]]
func.func @main(%seen: tensor<5xi32>, %ids: tensor<8x1xi32> {rhino.role = "batch"}) -> tensor<5xi32> {
  %ones = stablehlo.constant dense<1> : tensor<8xi32>
  %0 = "stablehlo.scatter"(%seen, %ids, %ones) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %1 = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %1 : tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<5xi32>, tensor<8x1xi32>, tensor<8xi32>) -> tensor<5xi32>
  return %0 : tensor<5xi32>
}
