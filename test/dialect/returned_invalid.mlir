// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+1 {{rhino.returned names result 1, but the function has 1 (argument 0)}}
func.func @main(%a: tensor<4xf32> {rhino.returned = {block = 0 : i64, results = [1]}}) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
