// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// A value that is not a role.
// expected-error @+1 {{rhino.role must be one of "param", "opt_state", "batch", "other", got "weight" (argument 0)}}
func.func @main(%a: tensor<4xf32> {rhino.role = "weight"}) {
  return
}

// -----

// A value that is not a string.
// expected-error @+1 {{rhino.role must be a string, got 3 (argument 1)}}
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32> {rhino.role = 3 : i64}) {
  return
}

// -----

// A value that is not plain data.
// expected-error @+1 {{rhino.role: i32 is not a string, number, array or dictionary (argument 0)}}
func.func @main(%a: tensor<4xf32> {rhino.role = i32}) {
  return
}

// -----

// Results have no role.
// expected-error @+1 {{rhino.role belongs on a function argument, not on a function result}}
func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32> {rhino.role = "param"}) {
  return %a : tensor<4xf32>
}

// -----

func.func @main(%a: tensor<4xf32>) {
  // expected-error @+1 {{rhino.role belongs on a function argument, not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %a {rhino.role = "param"} : tensor<4xf32>
  return
}
