// What is refused though statistics may be those of the micro-batch.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch="count=4 statistics=micro-batch" --verify-diagnostics

// The largest of a micro-batch says nothing of the largest of all.
func.func @main(%w: tensor<8x4xf32>, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x4xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = stablehlo.multiply %x, %w : tensor<8x4xf32>
  // expected-note @+1 {{'stablehlo.reduce' combines all examples here}}
  %most = stablehlo.reduce(%y init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %each = stablehlo.broadcast_in_dim %most, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  // expected-error @+2 {{not sync-free: 'stablehlo.subtract' needs, for every example, a value that is known after all examples}}
  // expected-note @+1 {{statistics=micro-batch takes only sums from a micro-batch for all examples}}
  %0 = stablehlo.subtract %y, %each : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
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

// A loop over layers that goes on with the square of a sum: what it ends with is known of micro-batches only.
func.func @main(%x: tensor<8x4xf32> {rhino.role = "batch"}) -> (tensor<8x4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %start = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4xf32>
  // expected-error @+2 {{this loop makes of sums over the batch a value that is needed of all examples}}
  // expected-note @+1 {{return the sums from the loop, and compute the value after it}}
  %r:3 = stablehlo.while(%i = %c0, %h = %x, %s = %start) : tensor<i32>, tensor<8x4xf32>, tensor<4xf32>
  cond {
    %less = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %y = stablehlo.exponential %h : tensor<8x4xf32>
    %square = stablehlo.multiply %sum, %sum : tensor<4xf32>
    %t = stablehlo.add %s, %square : tensor<4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %y, %t : tensor<i32>, tensor<8x4xf32>, tensor<4xf32>
  }
  return %r#1, %r#2 : tensor<8x4xf32>, tensor<4xf32>
}
