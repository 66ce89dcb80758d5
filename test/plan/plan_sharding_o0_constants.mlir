// Level O0 with a constant, of which Shardy makes an operation without operands: nothing is gathered for it.

// RUN: rhino-opt %s --rhino-plan-sharding='topology=dgx-h100:1 level=O0' | filecheck %s

// CHECK: rhino.plan = {{.*}}level = "O0"
sdy.mesh @mesh = <["x"=8]>
// CHECK: func.func @main
func.func @main(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %w: tensor<8x16xf32>) -> tensor<64x16xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<64x16xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  %1 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [1] : (tensor<64x16xf32>, tensor<8x16xf32>) -> tensor<64x8xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  %3 = stablehlo.add %0, %2 : tensor<64x16xf32>
  return %3 : tensor<64x16xf32>
}
