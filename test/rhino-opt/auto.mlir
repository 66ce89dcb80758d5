// rhino-auto is the whole pipeline: calls are inlined, roles given, a mesh chosen, everything annotated, twice the same.
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 mesh=8" -o %t.once
// RUN: rhino-opt %s --pass-pipeline='builtin.module(rhino-inline,symbol-dce,canonicalize,rhino-classify-args,rhino-expose-strided-dims,rhino-plan-sharding{topology=dgx-h100:1 mesh=8})' -o %t.steps
// RUN: diff %t.once %t.steps
// RUN: filecheck %s --input-file %t.once
// RUN: not rhino-opt %s --rhino-auto=topology=no-such-cluster 2>&1 | filecheck %s --check-prefix=CLUSTER

// CLUSTER: auto.mlir:{{[0-9]+}}:{{[0-9]+}}: error: {{.*}}no-such-cluster

// CHECK: module attributes {{.*}}rhino.cluster = {device = {{.*}}rhino.plan = {
// CHECK: sdy.mesh @mesh = <["{{.*}}"=8]>
// CHECK: func.func @main(%{{.*}}: tensor<8192x64xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh,
// CHECK-SAME: rhino.role = "param", sdy.sharding = #sdy.sharding<@mesh,
// CHECK-NOT: func.call
func.func @main(%x: tensor<8192x64xf32>, %w: tensor<64x64xf32>) -> tensor<8192x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x64xf32>, tensor<64x64xf32>) -> tensor<8192x64xf32>
  %1 = func.call @relu(%0) : (tensor<8192x64xf32>) -> tensor<8192x64xf32>
  return %1 : tensor<8192x64xf32>
}
func.func private @relu(%x: tensor<8192x64xf32>) -> tensor<8192x64xf32> {
  %0 = stablehlo.tanh %x : tensor<8192x64xf32>
  return %0 : tensor<8192x64xf32>
}
