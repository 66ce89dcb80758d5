// Interleaved stages: stage s is on group s mod the number of groups, and nothing travels within a group.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=4 mesh=4 microbatches=4 schedule=interleaved-1f1b' > %t
// RUN: filecheck %s < %t
// RUN: rhino-opt %t --rhino-verify | filecheck %s
// The estimate is the search's own.
// RUN: rhino-opt %t --rhino-estimate=topology=dgx-h100:1 2>&1 >/dev/null | filecheck %s --check-prefix=ESTIMATE
// The groups that are asked for, as for a step beside another.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=4 groups=2 microbatches=4' | filecheck %s --check-prefix=GROUPS

// CHECK: rhino.placement = {stage0 = [0, 1, 2, 3], stage1 = [4, 5, 6, 7]}
// CHECK-SAME: groups = 2 : i64
// CHECK-SAME: schedule = "interleaved-1f1b"
// CHECK-SAME: stages = 4 : i64
// Two micro-batches go forward on stage 0, then both on stage 2.
// CHECK-SAME: rhino.schedule = {microbatches = 4 : i64, schedule = "interleaved-1f1b", stages = 4 : i64, tasks = {{\[\[}}
// CHECK-SAME: {microbatch = 0 : i64, stage = 0 : i64, task = "forward"}
// CHECK-SAME: {microbatch = 1 : i64, stage = 0 : i64, task = "forward"}
// CHECK-SAME: {microbatch = 0 : i64, stage = 2 : i64, task = "forward"}
// CHECK: func.func private @microbatch
// CHECK: mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: mpmd.transfer {{.*}}edge = "forward 0 -> 1"
// CHECK: mpmd.fragment<mesh="stage1", origin=["forward"], stage=1>
// CHECK: mpmd.transfer {{.*}}edge = "forward 1 -> 2"
// CHECK: mpmd.fragment<mesh="stage0", origin=["forward"], stage=2>
// CHECK: mpmd.fragment<mesh="stage1", origin=["forward"], stage=3>
// CHECK-NOT: edge = "{{forward|backward}} {{0 -> 2|2 -> 0|1 -> 3|3 -> 1}}"
// CHECK: func.func @main
// Parameters of stages 0 and 2 are on the same devices.
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", {{.*}}{rhino.argument = {index = 0 : i64}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", {{.*}}{rhino.argument = {index = 1 : i64}
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", {{.*}}{rhino.argument = {index = 2 : i64}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", {{.*}}{rhino.argument = {index = 3 : i64}

// ESTIMATE: 4 stages, 4 micro-batches, interleaved-1f1b

// GROUPS: groups = 2 : i64
// GROUPS-SAME: schedule = "interleaved-1f1b"
// GROUPS-SAME: stages = 4 : i64
func.func @main(%w0: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %w1: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32}, %w2: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 2 : i32}, %w3: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 3 : i32}, %x: tensor<32x64xf32> {rhino.role = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
  %d0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %h0 = stablehlo.tanh %d0 : tensor<32x64xf32>
  %d1 = stablehlo.dot_general %h0, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %h1 = stablehlo.tanh %d1 : tensor<32x64xf32>
  %d2 = stablehlo.dot_general %h1, %w2, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %h2 = stablehlo.tanh %d2 : tensor<32x64xf32>
  %d3 = stablehlo.dot_general %h2, %w3, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %h3 = stablehlo.tanh %d3 : tensor<32x64xf32>
  %s3 = stablehlo.multiply %h3, %h3 : tensor<32x64xf32>
  %g3 = stablehlo.dot_general %h2, %s3, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %b3 = stablehlo.dot_general %s3, %w3, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %n3 = stablehlo.subtract %w3, %g3 : tensor<64x64xf32>
  %s2 = stablehlo.multiply %b3, %h2 : tensor<32x64xf32>
  %g2 = stablehlo.dot_general %h1, %s2, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %b2 = stablehlo.dot_general %s2, %w2, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %n2 = stablehlo.subtract %w2, %g2 : tensor<64x64xf32>
  %s1 = stablehlo.multiply %b2, %h1 : tensor<32x64xf32>
  %g1 = stablehlo.dot_general %h0, %s1, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %b1 = stablehlo.dot_general %s1, %w1, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %n1 = stablehlo.subtract %w1, %g1 : tensor<64x64xf32>
  %s0 = stablehlo.multiply %b1, %h0 : tensor<32x64xf32>
  %g0 = stablehlo.dot_general %x, %s0, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %n0 = stablehlo.subtract %w0, %g0 : tensor<64x64xf32>
  return %n0, %n1, %n2, %n3 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}
