// What is split, what is summed, and what comes before and after the loop.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch=count=4 | filecheck %s

// A dense layer with a squared error, and its gradient step. Casts of parameters come before the loop; the transpose of
// the gradient and its scaling are done once, after it.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<6x3xbf16> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %[[X:[a-z0-9]+]]: tensor<8x6xf32>
func.func @main(%w: tensor<6x3xbf16> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32> {rhino.role = "batch"}) -> (tensor<6x3xbf16> {jax.result_info = "w"}, tensor<f32>, tensor<8x3xf32>) {
  // CHECK-DAG: %[[CAST:.*]] = stablehlo.convert %[[W]]
  // CHECK-DAG: %[[APART:.*]] = stablehlo.reshape %[[X]] : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
  %0 = stablehlo.convert %w : (tensor<6x3xbf16>) -> tensor<6x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %scale = stablehlo.constant dense<0.125> : tensor<3x6xf32>
  // CHECK: %[[LOOP:.*]]:4 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}}, %[[GRAD:.*]] = %{{.*}}, %[[STACK:.*]] = %{{.*}}) : tensor<i32>, tensor<f32>, tensor<3x6xf32>, tensor<2x4x3xf32>
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64}}
  // CHECK: stablehlo.compare LT, %[[I]], %{{.*}}
  // CHECK: %[[CUT:.*]] = stablehlo.dynamic_slice %[[APART]], %{{.*}}, %[[I]], %{{.*}}, sizes = [2, 1, 6]
  // CHECK: %[[PART:.*]] = stablehlo.reshape %[[CUT]] : (tensor<2x1x6xf32>) -> tensor<2x6xf32>
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[PART]], %[[CAST]], {{.*}} -> tensor<2x3xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x3xf32>) -> tensor<8x3xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<8x3xf32>
  // CHECK: %[[PARTIAL:.*]] = stablehlo.reduce{{.*}} applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x3xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: stablehlo.add %[[LOSS]], %[[PARTIAL]]
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[Y]], %[[PART]], contracting_dims = [0] x [0]{{.*}} -> tensor<3x6xf32>
  // CHECK: stablehlo.add %[[GRAD]], %[[DOT]]
  // CHECK: %[[PLACED:.*]] = stablehlo.reshape %[[Y]] : (tensor<2x3xf32>) -> tensor<2x1x3xf32>
  // CHECK: stablehlo.dynamic_update_slice %[[STACK]], %[[PLACED]], %{{.*}}, %[[I]], %{{.*}}
  // CHECK: stablehlo.return
  // CHECK: }
  // CHECK: %[[ALL:.*]] = stablehlo.reshape %[[LOOP]]#3 : (tensor<2x4x3xf32>) -> tensor<8x3xf32>
  %4 = stablehlo.dot_general %1, %x, contracting_dims = [0] x [0] : (tensor<8x3xf32>, tensor<8x6xf32>) -> tensor<3x6xf32>
  // CHECK: %[[SCALED:.*]] = stablehlo.multiply %[[LOOP]]#2,
  %5 = stablehlo.multiply %4, %scale : tensor<3x6xf32>
  // CHECK: %[[BACK:.*]] = stablehlo.transpose %[[SCALED]]
  %6 = stablehlo.transpose %5, dims = [1, 0] : (tensor<3x6xf32>) -> tensor<6x3xf32>
  %7 = stablehlo.subtract %0, %6 : tensor<6x3xf32>
  // CHECK: %[[NEW:.*]] = stablehlo.convert %{{.*}} : (tensor<6x3xf32>) -> tensor<6x3xbf16>
  %8 = stablehlo.convert %7 : (tensor<6x3xf32>) -> tensor<6x3xbf16>
  // CHECK: return %[[NEW]], %[[LOOP]]#1, %[[ALL]]
  return %8, %3, %1 : tensor<6x3xbf16>, tensor<f32>, tensor<8x3xf32>
}

// -----

// Two uses of one parameter: their gradients are added in the loop, and there is one accumulator. That of bfloat16 is
// float32.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8x4xbf16> {rhino.role = "batch"}) -> tensor<4x4xbf16> {
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %{{.*}}) : tensor<i32>, tensor<4x4xf32>
  // CHECK: %[[SUM:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<4x4xbf16>
  // CHECK: %[[WIDE:.*]] = stablehlo.convert %[[SUM]] : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  // CHECK: stablehlo.add %{{.*}}, %[[WIDE]] : tensor<4x4xf32>
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<4x4xbf16>
  %1 = stablehlo.exponential %x : tensor<8x4xbf16>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<4x4xbf16>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %4 = stablehlo.add %0, %3 : tensor<4x4xbf16>
  // CHECK: stablehlo.convert %{{.*}}#1 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  return %4 : tensor<4x4xbf16>
}

// -----

// The batch in a merged dimension: [examples x positions] is taken apart again, whatever is whole is cut likewise.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x5xf32> {rhino.role = "batch"}, %[[M:[a-z0-9]+]]: tensor<40xf32>
func.func @main(%x: tensor<8x5xf32> {rhino.role = "batch"}, %m: tensor<40xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: stablehlo.reshape %[[M]] : (tensor<40xf32>) -> tensor<2x4x5xf32>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.multiply %{{.*}}, %{{.*}} : tensor<10xf32>
  %0 = stablehlo.reshape %x : (tensor<8x5xf32>) -> tensor<40xf32>
  %1 = stablehlo.multiply %0, %m : tensor<40xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<40xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Numbers of examples: micro-batch i has i, i + 4. The mask is computed from them in the loop, and nowhere whole.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8x3xf32> {rhino.role = "batch"}) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %limit = stablehlo.constant dense<5> : tensor<8x3xui32>
  // CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %{{.*}})
  // CHECK: %[[FROM:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<ui32>
  // CHECK: %[[FIRST:.*]] = stablehlo.broadcast_in_dim %[[FROM]], dims = []
  // CHECK: %[[COUNT:.*]] = stablehlo.iota dim = 0 : tensor<2xui32>
  // CHECK: %[[STRIDE:.*]] = stablehlo.constant dense<4> : tensor<2xui32>
  // CHECK: %[[FAR:.*]] = stablehlo.multiply %[[COUNT]], %[[STRIDE]]
  // CHECK: stablehlo.add %[[FIRST]], %[[FAR]] : tensor<2xui32>
  %n = stablehlo.iota dim = 0 : tensor<8x3xui32>
  // CHECK: stablehlo.compare LT, %{{.*}}, %{{.*}} : (tensor<2x3xui32>
  %mask = stablehlo.compare LT, %n, %limit : (tensor<8x3xui32>, tensor<8x3xui32>) -> tensor<8x3xi1>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
  %0 = stablehlo.select %mask, %x, %zeros : tensor<8x3xi1>, tensor<8x3xf32>
  // CHECK-NOT: tensor<8x3x
  // CHECK: return
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// -----

// A count made of the data alone is needed by every example: it is taken before the loop, of the whole batch.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8xf32>
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}, %m: tensor<8xf32> {rhino.role = "batch"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: %[[TOTAL:.*]] = stablehlo.reduce(%{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.broadcast_in_dim %[[TOTAL]], dims = [] : (tensor<f32>) -> tensor<2xf32>
  %total = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %each = stablehlo.broadcast_in_dim %total, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %0 = stablehlo.divide %x, %each : tensor<8xf32>
  %1 = stablehlo.exponential %0 : tensor<8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Maximum, and whether all are finite, are accumulated as such.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> (tensor<f32>, tensor<i1>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.maximum %{{.*}}, %{{.*}} : tensor<f32>
  // CHECK: stablehlo.and %{{.*}}, %{{.*}} : tensor<i1>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %finite = stablehlo.is_finite %x : (tensor<8xf32>) -> tensor<8xi1>
  %1 = stablehlo.reduce(%finite init: %true) applies stablehlo.and across dimensions = [0] : (tensor<8xi1>, tensor<i1>) -> tensor<i1>
  return %0, %1 : tensor<f32>, tensor<i1>
}

// -----

// Groups of two examples are computed together: they stay together, micro-batch i has group i.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x3xf32>
func.func @main(%x: tensor<8x3xf32> {rhino.role = "batch"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: stablehlo.reshape %[[X]] : (tensor<8x3xf32>) -> tensor<1x4x2x3xf32>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<2x3xf32>) -> tensor<1x6xf32>
  // CHECK: stablehlo.reduce{{.*}} applies stablehlo.maximum across dimensions = [1] : (tensor<1x6xf32>
  %0 = stablehlo.reshape %x : (tensor<8x3xf32>) -> tensor<4x6xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// A complex zero is a zero to start a sum with, written as one constant or made of two.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8xcomplex<f32>> {rhino.role = "batch"}) -> (tensor<complex<f32>>, tensor<complex<f32>>) {
  %zero = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
  %part = stablehlo.constant dense<0.0> : tensor<f32>
  %made = stablehlo.complex %part, %part : tensor<complex<f32>>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<complex<f32>>
  // CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<complex<f32>>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
  %1 = stablehlo.reduce(%x init: %made) applies stablehlo.add across dimensions = [0] : (tensor<8xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
  return %0, %1 : tensor<complex<f32>>, tensor<complex<f32>>
}

// -----

// Two views of the batch, joined, one of them taken again, and its transpose: whole batches, of which each micro-batch
// has its part. What is fixed is cut.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<8x3xf32> {rhino.role = "batch"}, %w: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<16x3xf32>) {
  // CHECK: %[[VIEWS:.*]] = stablehlo.concatenate %[[PART:.*]], %{{.*}}, %[[PART]], dim = 0 : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<6x3xf32>
  // CHECK: stablehlo.slice %[[VIEWS]] [2:4, 0:3] : (tensor<6x3xf32>) -> tensor<2x3xf32>
  // CHECK: stablehlo.pad %[[PART]], %{{.*}}, low = [2, 0], high = [0, 0], interior = [0, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<4x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.concatenate %x, %w, %x, dim = 0 : (tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<24x3xf32>
  %1 = stablehlo.slice %0 [8:16, 0:3] : (tensor<24x3xf32>) -> tensor<8x3xf32>
  %2 = stablehlo.pad %x, %zero, low = [8, 0], high = [0, 0], interior = [0, 0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<16x3xf32>
  return %1, %2 : tensor<8x3xf32>, tensor<16x3xf32>
}
