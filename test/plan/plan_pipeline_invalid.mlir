// What rhino-plan-pipeline refuses, and where.
// RUN: rhino-opt %s --rhino-plan-pipeline="topology=dgx-h100:1 microbatches=4" --verify-diagnostics --split-input-file

// expected-error @+2 {{no argument of the step is a batch, which micro-batches are cut from}}
// expected-note @+1 {{plan it as one program (stages=1)}}
func.func @main(%w: tensor<8x4xf32> {rhino.role = "param"}) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %w : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// Normalisation by statistics of the batch.
func.func @main(%w: tensor<8x4xf32>, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %w : tensor<8x4xf32>
  // expected-note @+1 {{'stablehlo.reduce' combines all examples here}}
  %sum = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %mean = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  // expected-error @+2 {{not sync-free: 'stablehlo.subtract' needs, for every example, a value that is known after all examples}}
  // expected-note @+1 {{run the step as one micro-batch}}
  %0 = stablehlo.subtract %y, %mean : tensor<8x4xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<8x4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// A shape that is known at run time only.
// expected-error @+2 {{'rhino-plan-pipeline' needs static shapes, got 'tensor<?x4xf32>'}}
// expected-note @+1 {{lower the step with concrete shapes}}
func.func @main(%x: tensor<?x4xf32> {rhino.role = "batch"}) -> tensor<?x4xf32> {
  return %x : tensor<?x4xf32>
}

// -----

// Each stage has a mesh of its own.
sdy.mesh @mesh = <["x"=8]>
// expected-error @+2 {{the module has sdy.mesh @mesh over all devices, but stages have their own}}
// expected-note @+1 {{drop it and the shardings over it, or run rhino-plan-sharding}}
func.func @main(%x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

// A step that computes nothing takes no time on any device.
// expected-error-re @+2 {{no pipeline is possible on dgx-h100:1: {{.*}} the micro-batch loop has nothing to divide into stages}}
// expected-note @+1 {{ask for another number of stages or micro-batches, or plan it as one program (stages=1)}}
func.func @main(%x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}
