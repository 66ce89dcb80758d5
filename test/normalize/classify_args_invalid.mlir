// What the pass refuses: no @main, no body, dynamic shapes, and a role that is not one.
// RUN: rhino-opt %s --rhino-classify-args --verify-diagnostics --split-input-file

// expected-error @+2 {{'rhino-classify-args' needs a function @main; the module has @step}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
  func.func @step() {
    return
  }
}

// -----

// expected-error @+2 {{'rhino-classify-args' needs @main to have a body}}
// expected-note @+1 {{give the module that defines it}}
func.func private @main()

// -----

// expected-error @+2 {{'rhino-classify-args' needs static shapes, got 'tensor<?xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?xf32>) {
  return
}

// -----

// A role already given is kept, so the verifier that runs next finds this one.
// expected-error @+1 {{rhino.role must be one of "param", "opt_state", "batch", "other", got "wight" (argument 0)}}
func.func @main(%w: tensor<4xf32> {rhino.role = "wight"}) {
  return
}

// -----

// expected-error @+2 {{'rhino-classify-args' needs a step of tensors, and argument 1 of @main is 'tuple<tensor<4xf32>>'}}
// expected-note @+1 {{take and return arrays, each as an argument or result of its own}}
func.func @main(%x: tensor<4xf32>, %y: tuple<tensor<4xf32>>) {
  return
}

// -----

// expected-error @+2 {{'rhino-classify-args' needs a step of tensors, and result 0 of @main is '!stablehlo.token'}}
// expected-note @+1 {{take and return arrays}}
func.func @main() -> !stablehlo.token {
  %0 = stablehlo.create_token : !stablehlo.token
  return %0 : !stablehlo.token
}

// -----

// expected-error @+2 {{'tensor<9223372036854775807x4xi8>' has more elements than a program can count}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<9223372036854775807x4xi8>) {
  return
}
