// Every refusal, at its place.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch=count=4 --verify-diagnostics

// Normalisation by statistics of the batch.
func.func @main(%w: tensor<8x4xf32>, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %w : tensor<8x4xf32>
  // expected-note @+1 {{'stablehlo.reduce' combines all examples here}}
  %sum = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %mean = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  // expected-error @+2 {{not sync-free: 'stablehlo.subtract' needs, for every example, a value that is known after all examples}}
  // expected-note @+1 {{run the step as one micro-batch; or give statistics=micro-batch}}
  %0 = stablehlo.subtract %y, %mean : tensor<8x4xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<8x4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// The similarity of every example to every other.
func.func @main(%x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x8xf32> {
  // expected-error @+2 {{'stablehlo.dot_general' brings examples together with other examples}}
  // expected-note @+1 {{run the step as one micro-batch, or compute this within single examples}}
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// A sort of the batch.
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  // expected-error @+2 {{'stablehlo.sort' needs all examples at once: it works along dimension 0, which holds the batch}}
  // expected-note @+1 {{run the step as one micro-batch}}
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Halves of the batch.
func.func @main(%x: tensor<8x3xf32> {rhino.role = "batch"}) -> tensor<4x3xf32> {
  // expected-error @+2 {{'stablehlo.slice' needs all examples at once}}
  // expected-note @+1 {{run the step}}
  %0 = stablehlo.slice %x [0:4, 0:3] : (tensor<8x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// A reducer that is not one operation.
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error @+2 {{'stablehlo.reduce' combines all examples, and not by add, multiply, maximum, minimum, and, or, xor}}
  // expected-note @+1 {{run the step}}
  %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
   reducer(%a: tensor<f32>, %b: tensor<f32>) {
    %1 = stablehlo.multiply %a, %b : tensor<f32>
    %2 = stablehlo.add %a, %1 : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }
  return %0 : tensor<f32>
}

// -----

// logits[arange(8), labels].
func.func @main(%x: tensor<8x5xf32> {rhino.role = "batch"}, %l: tensor<8xi32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %n = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %r = stablehlo.reshape %l : (tensor<8xi32>) -> tensor<8x1xi32>
  %i = stablehlo.concatenate %n, %r, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  // expected-error @+2 {{'stablehlo.gather' looks up examples by their number in the batch}}
  // expected-note @+1 {{write it per example, as in take_along_axis or jax.vmap, instead of indexing with arange}}
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x5xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Nothing is known of a custom call.
func.func @main(%x: tensor<8x5xf32> {rhino.role = "batch"}) -> tensor<8x5xf32> {
  // expected-error @+2 {{'stablehlo.custom_call' reads the batch, and how it works on it is not known}}
  // expected-note @+1 {{run the step}}
  %0 = stablehlo.custom_call @kernel(%x) : (tensor<8x5xf32>) -> tensor<8x5xf32>
  return %0 : tensor<8x5xf32>
}

// -----

// How long a loop runs is a matter of the examples.
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %false = stablehlo.constant dense<false> : tensor<i1>
  %one = stablehlo.constant dense<1.0> : tensor<8xf32>
  // expected-error @+2 {{how often this loop runs depends on the batch}}
  // expected-note @+1 {{run the step}}
  %0 = stablehlo.while(%h = %x) : tensor<8xf32>
  cond {
    %c = stablehlo.compare LT, %h, %one : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %any = stablehlo.reduce(%c init: %false) applies stablehlo.or across dimensions = [0] : (tensor<8xi1>, tensor<i1>) -> tensor<i1>
    stablehlo.return %any : tensor<i1>
  } do {
    %2 = stablehlo.add %h, %one : tensor<8xf32>
    stablehlo.return %2 : tensor<8xf32>
  }
  return %0 : tensor<8xf32>
}

// -----

// Three groups of examples in four micro-batches.
func.func @main(%x: tensor<12x3xf32> {rhino.role = "batch"}) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error @+2 {{groups of 4 examples are computed together here, and 3 of them are not divisible by 4 micro-batches}}
  // expected-note @+1 {{choose a number that divides 3}}
  %0 = stablehlo.reshape %x : (tensor<12x3xf32>) -> tensor<3x12xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.maximum across dimensions = [1] : (tensor<3x12xf32>, tensor<f32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// -----

// expected-error @+2 {{the batch of 6 examples is not divisible by 4 micro-batches}}
// expected-note @+1 {{choose a number that divides 6}}
func.func @main(%x: tensor<6xf32> {rhino.role = "batch"}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}

// -----

// expected-error @+2 {{no argument has the role 'batch'}}
// expected-note @+1 {{run rhino-classify-args first, or set rhino.role}}
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// Half of the batch is no whole view of it.
func.func @main(%x: tensor<8x5xf32> {rhino.role = "batch"}) -> tensor<12x5xf32> {
  %0 = stablehlo.concatenate %x, %x, dim = 0 : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<16x5xf32>
  // expected-error @+2 {{'stablehlo.slice' needs all examples at once: it works along dimension 0, which holds the batch}}
  // expected-note @+1 {{run the step as one micro-batch}}
  %1 = stablehlo.slice %0 [4:16, 0:5] : (tensor<16x5xf32>) -> tensor<12x5xf32>
  return %1 : tensor<12x5xf32>
}
