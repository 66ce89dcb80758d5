// Options of rhino-plan-pipeline that cannot be meant, or that nothing satisfies, are named, with what to write instead.
// RUN: not rhino-opt %s --rhino-plan-pipeline 2>&1 | filecheck %s --check-prefix=TOPOLOGY
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=9' 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=3 mesh=2' 2>&1 | filecheck %s --check-prefix=UNEQUAL
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=8' 2>&1 | filecheck %s --check-prefix=UNITS
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=-2' 2>&1 | filecheck %s --check-prefix=NEGATIVE
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 microbatches=3' 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 mesh=4 stages=4' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 mesh=8 stages=2 microbatches=4' 2>&1 | filecheck %s --check-prefix=WIDE
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 mesh=2 stages=16 microbatches=32' 2>&1 | filecheck %s --check-prefix=MANY
// What the note says is planned.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 mesh=4 stages=2 microbatches=4' | filecheck %s --check-prefix=ENOUGH
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 schedule=2f2b' 2>&1 | filecheck %s --check-prefix=SCHEDULE
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 schedule=interleaved-1f1b stages=3' 2>&1 | filecheck %s --check-prefix=DEALT
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=4 groups=3' 2>&1 | filecheck %s --check-prefix=GROUPS
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 level=O0' 2>&1 | filecheck %s --check-prefix=LEVEL
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 memory-limit=-1' 2>&1 | filecheck %s --check-prefix=LIMIT
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 memory-limit=2000' 2>&1 | filecheck %s --check-prefix=STATE
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 memory-limit=9000' 2>&1 | filecheck %s --check-prefix=MEMORY

// TOPOLOGY: error: 'rhino-plan-pipeline' needs a topology
// STAGES: plan_pipeline_options_invalid.mlir:[[LINE:[0-9]+]]:1: error: 9 stages for the 8 devices of dgx-h100:1
// STAGES: :[[LINE]]:1: note: give a number of stages from 1 to 8
// UNEQUAL: error: 3 stages on the 8 devices of cluster dgx-h100:1 have 3+3+2 of them, which no one mesh fits
// UNEQUAL: note: leave the mesh to the search
// The devices would do, the step has too few parts.
// UNITS: error: no pipeline is possible on dgx-h100:1: 8 stages of 1, {{.*}}: 8 stages, but the step can be divided into 4 units at most
// UNITS: note: ask for another number of stages
// NEGATIVE: error: stages -2 is negative
// COUNT: error: a batch of 32 examples cannot be cut into 3 equal micro-batches
// MESH: error: 4 stages of 4 devices need 16, and cluster dgx-h100:1 has 8
// MESH: note: give a mesh of 2 devices, or leave it to the search
// Divided among the replicas that there are not, the batch ended in "integer modulo by zero".
// WIDE: error: 2 stages of 8 devices need 16, and cluster dgx-h100:1 has 8
// WIDE: note: give a mesh of 4 devices
// MANY: error: 16 stages for the 8 devices of dgx-h100:1
// ENOUGH: rhino.plan
// SCHEDULE: error: schedule '2f2b' is not among those
// SCHEDULE: note: give gpipe, 1f1b, kfkb, eager-1f1b, interleaved-1f1b, zero-bubble, or leave it to the search
// DEALT: error: 3 stages cannot be interleaved: each of several groups of devices has several of them
// DEALT: note: ask for 4, 6 or another number that can be divided so
// GROUPS: error: 4 stages cannot be dealt to 3 groups of devices
// GROUPS: note: give a number of stages that the number of groups divides
// LEVEL: error: 'rhino-plan-pipeline': option 'level' is 'O0' but must be one of O1, O2
// LIMIT: error: memory-limit -1 is negative
// Less than an eighth of parameters and gradients is no use looking for.
// STATE: error: no pipeline fits in 1.95 KiB per device on dgx-h100:1: parameters, optimizer state and gradients alone take 4.00 KiB of each device
// STATE: note: use more devices, or raise the limit
// MEMORY: error: no pipeline fits in 8.79 KiB per device on dgx-h100:1: {{[1248]}} stages of {{.*}} needs {{[0-9.]+}} KiB
// MEMORY: note: use more devices, recompute activations
func.func @main(
    %w0: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
    %x: tensor<32x64xf32> {rhino.role = "batch"}
  ) -> tensor<64x64xf32> {
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %t = stablehlo.tanh %h : tensor<32x64xf32>
  %g0 = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %n0 = stablehlo.subtract %w0, %g0 : tensor<64x64xf32>
  return %n0 : tensor<64x64xf32>
}
