// Pins that no pipeline keeps: against the order of the program, to a stage that there is not, over axes there are not.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 microbatches=2 mesh=4' --verify-diagnostics --split-input-file

// expected-error @+2 {{2 stages of 4, 2 micro-batches: no stages leave w0 on stage 1 and w1 on stage 0: what reads the first comes before what reads the second}}
// expected-note @+1 {{ask for another number of stages}}
func.func @main(%w0: tensor<64x64xf32> {rhino.role = "param", rhino.name = "w0", rhino.pin = [{sharding = [[], []], stage = 1 : i64}]},
                %w1: tensor<64x64xf32> {rhino.role = "param", rhino.name = "w1", rhino.pin = [{sharding = [[], []], stage = 0 : i64}]},
                %x: tensor<32x64xf32> {rhino.role = "batch"}) -> tensor<32x64xf32> {
  %a = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  return %b : tensor<32x64xf32>
}

// -----

// expected-error @+2 {{w0 is pinned to stage 2, and there are 2}}
// expected-note @+1 {{ask}}
func.func @main(%w0: tensor<64x64xf32> {rhino.role = "param", rhino.name = "w0", rhino.pin = [{sharding = [[], []], stage = 2 : i64}]},
                %w1: tensor<64x64xf32> {rhino.role = "param"}, %x: tensor<32x64xf32> {rhino.role = "batch"}) -> tensor<32x64xf32> {
  %a = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  return %b : tensor<32x64xf32>
}

// -----

// expected-error @+2 {{w0 is sharded over axis 'model' but the mesh has x}}
// expected-note @+1 {{use the axes of the mesh}}
func.func @main(%w0: tensor<64x64xf32> {rhino.role = "param", rhino.name = "w0", rhino.pin = [{sharding = [["model"], []], stage = 0 : i64}]},
                %w1: tensor<64x64xf32> {rhino.role = "param"}, %x: tensor<32x64xf32> {rhino.role = "batch"}) -> tensor<32x64xf32> {
  %a = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  return %b : tensor<32x64xf32>
}
