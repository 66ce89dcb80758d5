// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+1 {{rhino.argument.slice [[4, 6]] is not as large as the shape [3, 8] (argument 0)}}
func.func @main(%a: tensor<3x8xf32> {rhino.argument = {index = 3 : i64, slice = [[4 : i64, 6 : i64]]}}) {
  return
}

// -----

// expected-error @+1 {{rhino.argument.slice [[4, 6], [0, 1]] has more dimensions than the shape [2] (argument 0)}}
func.func @main(%a: tensor<2xf32> {rhino.argument = {index = 3 : i64, slice = [[4 : i64, 6 : i64], [0 : i64, 1 : i64]]}}) {
  return
}
