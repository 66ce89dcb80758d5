// Every step of rhino-auto is one of the pass manager: also the passes that a pass has it run, for what it found.
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=2 microbatches=4 schedule=1f1b" --mlir-print-ir-after-all -o %t.whole 2>%t.after
// RUN: grep "IR Dump" %t.after | filecheck %s --check-prefix=AFTER
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=-1" --mlir-timing -o /dev/null 2>%t.timing
// RUN: filecheck %s --input-file %t.timing --check-prefix=TIME
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=-1" --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=2" --mlir-timing --mlir-pass-statistics -o /dev/null 2>%t.written
// RUN: filecheck %s --input-file %t.written --check-prefix=WRITTEN

// What is planned for two stages: the step, as the search had it cut, is made fragments with their transfers and tasks.
// AFTER: After rhino-inline
// AFTER: After SymbolDCE
// AFTER: After rhino-forward-copies
// AFTER: After Canonicalizer
// AFTER: After rhino-batch-lookups
// AFTER: After rhino-neutral-starts
// AFTER: After rhino-convert-operands
// AFTER: After rhino-delay-random
// AFTER: After rhino-adopt-mesh
// AFTER: After rhino-describe-kernels
// AFTER: After rhino-classify-args
// AFTER: After rhino-order-products
// AFTER: After rhino-form-fragments
// AFTER: After rhino-replicate-fragments
// AFTER: After rhino-lower-transfers
// AFTER: After rhino-schedule
// AFTER: After rhino-plan-pipeline
// AFTER: After rhino-partition-kernels

// Each as it is when the next begins: before fragments are formed, operations have stages and layouts.
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=2 microbatches=4 schedule=1f1b" --mlir-print-ir-before=rhino-form-fragments -o /dev/null 2>&1 | filecheck %s --check-prefix=BEFORE
// BEFORE: IR Dump Before rhino-form-fragments
// BEFORE: sdy.mesh @mesh
// BEFORE: rhino.microbatches = {count
// BEFORE: rhino.stage = {phase = "forward"

// Where both are searched, those of both; a pass's own time is without that of the passes it had run. The pipeline is
// slower here, and is not written.
// TIME: Execution time report
// TIME: rhino-plan-parallelism
// TIME: rhino-expose-strided-dims
// TIME: rhino-plan-sharding
// TIME: rhino-plan-pipeline
// TIME-NOT: rhino-schedule
// TIME: rhino-partition-kernels
// TIME: {{[0-9.]+}} (100.0%)  Total

// COUNT: 'rhino-plan-sharding' Pass

// WRITTEN: 'rhino-form-fragments' Pass
// WRITTEN: 'rhino-plan-pipeline' Pass
// WRITTEN: Execution time report
// WRITTEN: rhino-plan-pipeline
// WRITTEN: rhino-schedule

func.func @main(
    %w1: tensor<4x256xf32> {tf.aliasing_output = 0 : i32},
    %w2: tensor<256x64xf32> {tf.aliasing_output = 1 : i32},
    %x: tensor<4096x4xf32>) -> (tensor<4x256xf32>, tensor<256x64xf32>) {
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
