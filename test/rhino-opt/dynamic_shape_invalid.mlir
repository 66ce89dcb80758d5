// XLA's partitioner needs static shapes; a dynamic one is refused where it first appears.
// RUN: rhino-opt %s --rhino-classify-args --verify-diagnostics --split-input-file

// expected-error @+2 {{'rhino-classify-args' needs static shapes, got 'tensor<?x4xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?x4xf32>) {
  return
}

// -----

func.func @main(%n: tensor<1xi32>) {
  // expected-error @+2 {{needs static shapes, got 'tensor<?xf32>'}}
  // expected-note @+1 {{lower the step with concrete shapes}}
  %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  return
}
