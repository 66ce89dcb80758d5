// rhino.strided: the original layout of an argument whose fused dimension is stored as factors.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 4, 2]}], shape = [8, 24]}
func.func @main(%qkv: tensor<8x3x4x2xf32> {rhino.strided = {shape = [8, 24], dims = [{dim = 1 : i64, factors = [3, 4, 2]}]}}) {
  return
}
