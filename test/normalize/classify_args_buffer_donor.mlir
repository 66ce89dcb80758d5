// Where jax leaves aliasing to XLA (jax.buffer_donor, as under shardings), the roles are those of aliased state. A donated
// batch is not state: no output is made of it.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<8x4xf32> {jax.buffer_donor = true, rhino.role = "param"}
// CHECK-SAME: tensor<8x4xf32> {jax.buffer_donor = true, rhino.role = "opt_state"}
// CHECK-SAME: tensor<16x8xf32> {jax.buffer_donor = true, rhino.role = "batch"}
func.func @main(%w: tensor<8x4xf32> {jax.buffer_donor = true}, %m: tensor<8x4xf32> {jax.buffer_donor = true},
                %x: tensor<16x8xf32> {jax.buffer_donor = true}) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.add %m, %1 : tensor<8x4xf32>
  %3 = stablehlo.subtract %w, %2 : tensor<8x4xf32>
  return %3, %2 : tensor<8x4xf32>, tensor<8x4xf32>
}
