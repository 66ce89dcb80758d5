// Its option is a number. Dynamic shapes, which nothing plans, stay.
// RUN: not rhino-opt %s --rhino-delay-random=least=many 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: rhino-opt %s --rhino-delay-random=least=1 | filecheck %s

// OPTION: 'least'

// CHECK-LABEL: func.func @dynamic
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @dynamic(%x: tensor<8x?xf32>, %k: tensor<8x?xi32>, %w: tensor<8x?xf32>) -> tensor<8x?xf32> {
  %0 = stablehlo.xor %k, %k : tensor<8x?xi32>
  %1 = stablehlo.convert %0 : (tensor<8x?xi32>) -> tensor<8x?xf32>
  %2 = stablehlo.add %1, %x : tensor<8x?xf32>
  return %2 : tensor<8x?xf32>
}
