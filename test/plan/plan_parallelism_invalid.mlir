// What fits neither way is refused with the first reason, and a note that says what became of pipelines.
// RUN: not rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1 memory-limit=30000' 2>&1 | filecheck %s
// RUN: not rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1 mesh=2x4 memory-limit=20000' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1 microbatches=1 memory-limit=400000' 2>&1 | filecheck %s --check-prefix=WHOLE

// CHECK: plan_parallelism_invalid.mlir:[[LINE:[0-9]+]]:1: error: memory limit 29.3 KiB per device cannot be met
// CHECK: :[[LINE]]:1: note: raise the limit to
// CHECK: :[[LINE]]:1: note: nor is there a pipeline:

// A mesh is one over all devices: no pipeline is looked for.
// MESH: error: memory limit 19.5 KiB per device cannot be met
// MESH-NOT: nor is there a pipeline

// In micro-batches it would fit, but it was to be whole.
// WHOLE: error: memory limit 391 KiB per device cannot be met on dgx-h100:1: the smallest plan found needs 1.26 MiB
// WHOLE: note: nor is there a pipeline
func.func @main(
    %w1: tensor<4x256xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
    %w2: tensor<256x64xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
    %x: tensor<4096x4xf32> {rhino.role = "batch"}) -> (tensor<4x256xf32>, tensor<256x64xf32>) {
  %rate1 = stablehlo.constant dense<1.0e-03> : tensor<4x256xf32>
  %rate2 = stablehlo.constant dense<1.0e-03> : tensor<256x64xf32>
  %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<4096x4xf32>, tensor<4x256xf32>) -> tensor<4096x256xf32>
  %1 = stablehlo.tanh %0 : tensor<4096x256xf32>
  %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<4096x256xf32>, tensor<256x64xf32>) -> tensor<4096x64xf32>
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [0] x [0] : (tensor<4096x256xf32>, tensor<4096x64xf32>) -> tensor<256x64xf32>
  %4 = stablehlo.dot_general %2, %w2, contracting_dims = [1] x [1] : (tensor<4096x64xf32>, tensor<256x64xf32>) -> tensor<4096x256xf32>
  %5 = stablehlo.multiply %4, %1 : tensor<4096x256xf32>
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] : (tensor<4096x4xf32>, tensor<4096x256xf32>) -> tensor<4x256xf32>
  %7 = stablehlo.multiply %6, %rate1 : tensor<4x256xf32>
  %8 = stablehlo.multiply %3, %rate2 : tensor<256x64xf32>
  %9 = stablehlo.subtract %w1, %7 : tensor<4x256xf32>
  %10 = stablehlo.subtract %w2, %8 : tensor<256x64xf32>
  return %9, %10 : tensor<4x256xf32>, tensor<256x64xf32>
}
