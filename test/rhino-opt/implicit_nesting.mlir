// A C++ pass that runs on functions only is nested in func.func when named bare, as a flag and in a pipeline.
// RUN: rhino-opt %s --sdy-populate-op-sharding-rules --dump-pass-pipeline 2>&1 | filecheck %s
// RUN: rhino-opt %s --pass-pipeline='builtin.module(sdy-populate-op-sharding-rules)' --dump-pass-pipeline 2>&1 | filecheck %s

// CHECK: builtin.module(func.func(sdy-populate-op-sharding-rules))
// CHECK: stablehlo.negate %{{.*}} {sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=4}>}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
