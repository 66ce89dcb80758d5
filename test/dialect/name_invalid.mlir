// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+1 {{rhino.name must not be empty (argument 0)}}
func.func @main(%a: tensor<4xf32> {rhino.name = ""}) {
  return
}

// -----

// expected-error @+1 {{rhino.name must be a string, got ['a'] (result 0)}}
func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32> {rhino.name = ["a"]}) {
  return %a : tensor<4xf32>
}

// -----

// expected-error @+1 {{rhino.name belongs on a function argument or a function result, not on the module}}
module attributes {rhino.name = "step"} {
}
