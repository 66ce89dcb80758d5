// rhino.distributed: the dimension of what an update makes that the replicas of a stage share out.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: stablehlo.negate %{{.*}} {rhino.distributed = 1 : i64}
  %0 = stablehlo.negate %a {rhino.distributed = 1 : i64} : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
