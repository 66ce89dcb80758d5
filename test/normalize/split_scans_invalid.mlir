// What the pass refuses as a whole: no @main, dynamic shapes, calls, and a count that splits nothing.
// RUN: rhino-opt %s --rhino-split-scans --verify-diagnostics --split-input-file

// expected-error @+2 {{'rhino-split-scans' needs a function @main; the module has @step}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
  func.func @step() {
    return
  }
}

// -----

// expected-error @+2 {{'rhino-split-scans' needs static shapes, got 'tensor<?xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?xf32>) {
  return
}

// -----

func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  // expected-error @+2 {{call to @f is not inlined}}
  // expected-note @+1 {{run the `rhino-inline` pass first (rhino-auto does)}}
  %4 = func.call @f(%r#1) : (tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}
func.func private @f(tensor<8xf32>) -> tensor<8xf32>
