// rhino.hosted: another program keeps the argument in the memory of the hosts.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: %arg0: tensor<4x8xf32> {rhino.hosted = true}
func.func @main(%a: tensor<4x8xf32> {rhino.hosted = true}) -> tensor<4x8xf32> {
  return %a : tensor<4x8xf32>
}
