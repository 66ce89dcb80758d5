// RUN: rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1' | filecheck %s --check-prefix=ROOM
// RUN: rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1 memory-limit=400000' | filecheck %s --check-prefix=TIGHT
// RUN: rhino-opt %s --rhino-plan-parallelism='topology=dgx-h100:1 pipelines=compare' | filecheck %s --check-prefix=BOTH

// Where everything fits, one program is planned for all devices, and no pipeline is looked for.
// ROOM: rhino.plan = {
// ROOM-SAME: stages = 1
// ROOM: sdy.mesh @mesh
// ROOM: func.func @main(%arg0: tensor<4x256xf32>

// Activations of the whole batch do not fit: those of micro-batches do, in one program.
// TIGHT: rhino.plan = {alternatives = [{name = "1 micro-batch",
// TIGHT-SAME: why = "its fastest plan needs 1.26 MiB of 391 KiB; slower within it"
// TIGHT-SAME: microbatches = 4 : i64
// What memory costs is so much that pipelines were looked for, too.
// TIGHT-SAME: search = {candidates = 4 : i64, costly = true
// TIGHT-SAME: stages = 1
// TIGHT: stablehlo.while
// TIGHT-SAME: rhino.microbatches = {count = 4 : i64}

// Both are planned; the one that lost is among the alternatives.
// BOTH: rhino.plan = {alternatives = [
// BOTH-SAME: stages of {{.*}} micro-batches
// BOTH-SAME: why = "{{[0-9.]+}}% slower"
// BOTH-SAME: stages = 1

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
