// Random bits of a layer wait for what its product reads.
// RUN: rhino-opt %s --rhino-delay-random=least=64 | filecheck %s
// RUN: rhino-opt %s --rhino-delay-random | filecheck %s --check-prefix=SMALL

// The second layer's key goes through a barrier beside what its product reads, and so does the first's.
// CHECK-LABEL: func.func @layers
// CHECK-SAME: %[[X:.*]]: tensor<8x8xf32>, %[[K1:.*]]: tensor<ui32>, %[[K2:.*]]: tensor<ui32>
// CHECK: %[[T:.*]] = stablehlo.tanh %[[X]]
// CHECK: %[[HELD1:.*]]:2 = stablehlo.optimization_barrier %[[T]], %[[K1]]
// CHECK: stablehlo.dot_general %[[HELD1]]#0
// CHECK: stablehlo.broadcast_in_dim %[[HELD1]]#1
// CHECK: %[[H:.*]] = stablehlo.select
// CHECK: %[[HELD2:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[K2]]
// CHECK: stablehlo.dot_general %[[HELD2]]#0
// CHECK: stablehlo.broadcast_in_dim %[[HELD2]]#1

// By default small tensors stay as they are.
// SMALL-LABEL: func.func @layers
// SMALL-NOT: optimization_barrier
// SMALL: func.func @one
func.func @layers(%x: tensor<8x8xf32>, %k1: tensor<ui32>, %k2: tensor<ui32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %half = stablehlo.constant dense<7> : tensor<8x8xui32>
  %count = stablehlo.iota dim = 0 : tensor<8x8xui32>
  %t = stablehlo.tanh %x : tensor<8x8xf32>
  %0 = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.broadcast_in_dim %k1, dims = [] : (tensor<ui32>) -> tensor<8x8xui32>
  %2 = stablehlo.xor %1, %count : tensor<8x8xui32>
  %3 = stablehlo.compare LT, %2, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %4 = stablehlo.select %3, %0, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %6 = stablehlo.broadcast_in_dim %k2, dims = [] : (tensor<ui32>) -> tensor<8x8xui32>
  %7 = stablehlo.xor %6, %count : tensor<8x8xui32>
  %8 = stablehlo.compare LT, %7, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %9 = stablehlo.select %8, %5, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  return %9 : tensor<8x8xf32>
}

// One tensor of bits is made once, whenever that is.
// CHECK-LABEL: func.func @one
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @one(%x: tensor<8x8xf32>, %k: tensor<ui32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %half = stablehlo.constant dense<7> : tensor<8x8xui32>
  %count = stablehlo.iota dim = 0 : tensor<8x8xui32>
  %t = stablehlo.tanh %x : tensor<8x8xf32>
  %0 = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<ui32>) -> tensor<8x8xui32>
  %2 = stablehlo.xor %1, %count : tensor<8x8xui32>
  %3 = stablehlo.compare LT, %2, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %4 = stablehlo.select %3, %0, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// A mask of constants is no random number, nor is a bias, and bits made before the product cannot wait for it.
// CHECK-LABEL: func.func @others
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @others(%x: tensor<8x8xf32>, %b: tensor<8xf32>, %k: tensor<ui32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %half = stablehlo.constant dense<7> : tensor<8x8xui32>
  %count = stablehlo.iota dim = 0 : tensor<8x8xui32>
  %early = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<ui32>) -> tensor<8x8xui32>
  %bits = stablehlo.xor %early, %count : tensor<8x8xui32>
  %more = stablehlo.add %bits, %count : tensor<8x8xui32>
  %t = stablehlo.tanh %x : tensor<8x8xf32>
  %0 = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
  %3 = stablehlo.xor %half, %count : tensor<8x8xui32>
  %4 = stablehlo.compare LT, %3, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %5 = stablehlo.select %4, %2, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  %6 = stablehlo.compare LT, %bits, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %7 = stablehlo.select %6, %5, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  %8 = stablehlo.compare LT, %more, %half : (tensor<8x8xui32>, tensor<8x8xui32>) -> tensor<8x8xi1>
  %9 = stablehlo.select %8, %7, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  return %9 : tensor<8x8xf32>
}
