// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+2 {{rhino.strided splits dim 1 with size 24 into [3, 4, 4], whose product is 48 (argument 0)}}
// expected-error @+1 {{rhino.strided says the stored shape is [8, 3, 4, 4], but the type tensor<8x3x4x2xf32> has [8, 3, 4, 2] (argument 0)}}
func.func @main(%qkv: tensor<8x3x4x2xf32> {rhino.strided = {shape = [8, 24], dims = [{dim = 1 : i64, factors = [3, 4, 4]}]}}) {
  return
}

// -----

// expected-error @+1 {{rhino.strided splits dim 2, but the original shape [8, 24] has rank 2}}
func.func @main(%w: tensor<8x24xf32> {rhino.strided = {shape = [8, 24], dims = [{dim = 2 : i64, factors = [3]}]}}) {
  return
}

// -----

// expected-error @+1 {{rhino.strided splits dim 0 twice}}
func.func @main(%w: tensor<2x4x24xf32> {rhino.strided = {shape = [8, 24], dims = [{dim = 0 : i64, factors = [2, 4]}, {dim = 0 : i64, factors = [2, 4]}]}}) {
  return
}
