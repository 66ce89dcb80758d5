// What was not described, or has no mesh, stays; attributes that are no description are errors.
// RUN: rhino-opt %s --rhino-partition-kernels --split-input-file --verify-diagnostics

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+2 {{rhino.kernel has no key 'flops'}}
  // expected-note@+1 {{let rhino-describe-kernels write it}}
  %0 = stablehlo.custom_call @f(%x) {rhino.kernel = {bytes = 8 : i64, name = "f", rate = "vector", type = "f32"}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}, custom>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
