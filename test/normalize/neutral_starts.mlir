// Reductions start from what changes nothing; their start is combined with them afterwards.
// RUN: rhino-opt %s --rhino-neutral-starts | filecheck %s

// The start is added once, to the whole sum.
// CHECK-LABEL: func.func @sum
// CHECK-SAME: %[[X:.*]]: tensor<8x4xf32>, %[[S:.*]]: tensor<f32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[X]] init: %[[ZERO]]) applies stablehlo.add
// CHECK: %[[START:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK: %[[ALL:.*]] = stablehlo.add %[[START]], %[[SUM]]
// CHECK: return %[[ALL]]
func.func @sum(%x: tensor<8x4xf32>, %start: tensor<f32>) -> tensor<4xf32> {
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// A product starts from one; a scalar needs no broadcast, and all its readers read what was started.
// CHECK-LABEL: func.func @product
// CHECK: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<ui8>
// CHECK: %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<ui8>
// CHECK: %[[PRODUCT:.*]] = stablehlo.reduce(%{{.*}} init: %[[ONE]]) applies stablehlo.multiply
// CHECK: %[[ALL:.*]] = stablehlo.multiply %[[TWO]], %[[PRODUCT]] : tensor<ui8>
// CHECK: return %[[ALL]], %[[ALL]]
func.func @product(%x: tensor<8xui8>) -> (tensor<ui8>, tensor<ui8>) {
  %two = stablehlo.constant dense<2> : tensor<ui8>
  %0 = stablehlo.reduce(%x init: %two) applies stablehlo.multiply across dimensions = [0] : (tensor<8xui8>, tensor<ui8>) -> tensor<ui8>
  return %0, %0 : tensor<ui8>, tensor<ui8>
}

// Zero stays what it is, minus zero and converted ones too.
// CHECK-LABEL: func.func @neutral
// CHECK-COUNT-2: stablehlo.reduce
// CHECK-NEXT: stablehlo.reduce
// CHECK-NEXT: return
func.func @neutral(%x: tensor<8xf32>, %c: tensor<8xcomplex<f32>>) -> (tensor<f32>, tensor<f32>, tensor<complex<f32>>) {
  %minus = stablehlo.constant dense<-0.0> : tensor<f32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %float = stablehlo.convert %one : (tensor<i32>) -> tensor<f32>
  %zeros = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
  %0 = stablehlo.reduce(%x init: %minus) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.reduce(%x init: %float) applies stablehlo.multiply across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.reduce(%c init: %zeros) applies stablehlo.add across dimensions = [0] : (tensor<8xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
  return %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<complex<f32>>
}

// So does what is not above, below or in anything; a converted least number of eight bits is not the least of more.
// CHECK-LABEL: func.func @bounds
// CHECK-COUNT-3: stablehlo.reduce
// CHECK-NEXT: %[[LEAST:.*]] = stablehlo.constant dense<-2147483648> : tensor<i32>
// CHECK-NEXT: %[[MAX:.*]] = stablehlo.reduce(%{{.*}} init: %[[LEAST]])
// CHECK-NEXT: %[[ALL:.*]] = stablehlo.maximum %{{.*}}, %[[MAX]]
// CHECK-NEXT: return %{{.*}}, %{{.*}}, %{{.*}}, %[[ALL]]
func.func @bounds(%x: tensor<8xf32>, %b: tensor<8xi1>, %u: tensor<8xui16>, %i: tensor<8xi32>)
    -> (tensor<f32>, tensor<i1>, tensor<ui16>, tensor<i32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %high = stablehlo.constant dense<65535> : tensor<ui16>
  %byte = stablehlo.constant dense<-128> : tensor<i8>
  %wide = stablehlo.convert %byte : (tensor<i8>) -> tensor<i32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.reduce(%b init: %true) applies stablehlo.and across dimensions = [0] : (tensor<8xi1>, tensor<i1>) -> tensor<i1>
  %2 = stablehlo.reduce(%u init: %high) applies stablehlo.minimum across dimensions = [0] : (tensor<8xui16>, tensor<ui16>) -> tensor<ui16>
  %3 = stablehlo.reduce(%i init: %wide) applies stablehlo.maximum across dimensions = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<i32>
  return %0, %1, %2, %3 : tensor<f32>, tensor<i1>, tensor<ui16>, tensor<i32>
}

// What another reducer starts from may belong to it.
// CHECK-LABEL: func.func @stay
// CHECK-SAME: %[[X:.*]]: tensor<8xf32>, %[[S:.*]]: tensor<f32>
// CHECK: stablehlo.reduce(%[[X]] init: %[[S]])
// CHECK: return
func.func @stay(%x: tensor<8xf32>, %start: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.reduce(%x init: %start) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
   reducer(%a: tensor<f32>, %b: tensor<f32>) {
    %1 = stablehlo.add %a, %b : tensor<f32>
    %2 = stablehlo.multiply %a, %1 : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }
  return %0 : tensor<f32>
}

// Of several results each has its own start.
// CHECK-LABEL: func.func @several
// CHECK: %[[FIVE:.*]] = stablehlo.constant dense<5> : tensor<i32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK: %[[LEAST:.*]] = stablehlo.constant dense<-2147483648> : tensor<i32>
// CHECK: %[[BOTH:.*]]:2 = stablehlo.reduce(%{{.*}} init: %[[ZERO]]), (%{{.*}} init: %[[LEAST]])
// CHECK-DAG: %[[SUM:.*]] = stablehlo.add %[[FIVE]], %[[BOTH]]#0
// CHECK-DAG: %[[MAX:.*]] = stablehlo.maximum %[[FIVE]], %[[BOTH]]#1
// CHECK: return %[[SUM]], %[[MAX]]
func.func @several(%x: tensor<8xi32>) -> (tensor<i32>, tensor<i32>) {
  %five = stablehlo.constant dense<5> : tensor<i32>
  %0:2 = stablehlo.reduce(%x init: %five), (%x init: %five) across dimensions = [0] : (tensor<8xi32>, tensor<8xi32>, tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
   reducer(%a: tensor<i32>, %c: tensor<i32>) (%b: tensor<i32>, %d: tensor<i32>) {
    %1 = stablehlo.add %a, %c : tensor<i32>
    %2 = stablehlo.maximum %b, %d : tensor<i32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<i32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<i32>
}

// A result that is made of another one's elements: their starts belong together, and stay.
// CHECK-LABEL: func.func @together
// CHECK-SAME: %[[X:.*]]: tensor<8xf32>, %[[S:.*]]: tensor<f32>
// CHECK: stablehlo.reduce(%[[X]] init: %[[S]]), (%[[X]] init: %[[S]])
// CHECK: return
func.func @together(%x: tensor<8xf32>, %start: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %0:2 = stablehlo.reduce(%x init: %start), (%x init: %start) across dimensions = [0] : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
   reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<f32>, %d: tensor<f32>) {
    %1 = stablehlo.add %a, %c : tensor<f32>
    %2 = stablehlo.multiply %a, %d : tensor<f32>
    stablehlo.return %1, %2 : tensor<f32>, tensor<f32>
  }
  return %0#0, %0#1 : tensor<f32>, tensor<f32>
}

// Windows, and what is scattered to the elements selected by them.
// CHECK-LABEL: func.func @windows
// CHECK-SAME: %[[X:.*]]: tensor<8xf32>, %[[Y:.*]]: tensor<4xf32>, %[[S:.*]]: tensor<f32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK: %[[SUMS:.*]] = "stablehlo.reduce_window"(%[[X]], %[[ZERO]])
// CHECK: stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[SUMS]]
// CHECK: %[[BACK:.*]] = "stablehlo.select_and_scatter"(%[[X]], %[[Y]], %{{.*}})
// CHECK: stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<8xf32>
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[BACK]]
func.func @windows(%x: tensor<8xf32>, %y: tensor<4xf32>, %start: tensor<f32>) -> (tensor<4xf32>, tensor<8xf32>) {
  %0 = "stablehlo.reduce_window"(%x, %start) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = "stablehlo.select_and_scatter"(%x, %y, %start) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<8xf32>, tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  return %0, %1 : tensor<4xf32>, tensor<8xf32>
}

// A reducer that works in a wider type than its operand has.
// CHECK-LABEL: func.func @wider
// CHECK-SAME: %[[X:.*]]: tensor<8x4xbf16>, %[[S:.*]]: tensor<bf16>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[X]] init: %[[ZERO]])
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[S]] : (tensor<bf16>) -> tensor<f32>
// CHECK: %[[START:.*]] = stablehlo.broadcast_in_dim %[[WIDE]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK: stablehlo.add %[[START]], %[[SUM]] : tensor<4xf32>
func.func @wider(%x: tensor<8x4xbf16>, %start: tensor<bf16>) -> tensor<4xf32> {
  %0 = "stablehlo.reduce"(%x, %start) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<8x4xbf16>, tensor<bf16>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
