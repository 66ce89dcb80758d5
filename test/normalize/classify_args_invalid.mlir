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

// expected-error @+1 {{'rhino-classify-args' needs @main to have a body}}
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
