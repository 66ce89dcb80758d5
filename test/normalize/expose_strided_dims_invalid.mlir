// What the pass refuses as a whole: no @main, no body, dynamic shapes.
// RUN: rhino-opt %s --rhino-expose-strided-dims --verify-diagnostics --split-input-file

// expected-error @+2 {{'rhino-expose-strided-dims' needs a function @main; the module has @step}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
  func.func @step() {
    return
  }
}

// -----

// expected-error @+2 {{'rhino-expose-strided-dims' needs @main to have a body}}
// expected-note @+1 {{give the module that defines it}}
func.func private @main()

// -----

// expected-error @+2 {{'rhino-expose-strided-dims' needs static shapes, got 'tensor<?xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?xf32>) {
  return
}
