// rhino-schedule: the task lists of a step in fragments, one per device group.
// RUN: rhino-opt %s --rhino-form-fragments --rhino-schedule=schedule=gpipe | filecheck %s --check-prefix=GPIPE
// RUN: rhino-opt %s --rhino-form-fragments --rhino-schedule --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments=split-backward --rhino-schedule=schedule=zero-bubble | filecheck %s --check-prefix=ZERO
// RUN: rhino-opt %s --rhino-form-fragments=split-backward --rhino-schedule --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=DELAY
// RUN: rhino-opt %s --rhino-form-fragments --rhino-schedule='topology=p3.8xlarge:1 schedule=eager-1f1b transfer=0.5' | filecheck %s --check-prefix=EAGER
// RUN: rhino-opt %s --rhino-form-fragments=groups=1 --rhino-schedule=schedule=interleaved-1f1b | filecheck %s --check-prefix=ONE

// All forwards come first.
// GPIPE: rhino.schedule = {microbatches = 4 : i64, schedule = "gpipe", stages = 2 : i64
// GPIPE-SAME: warmup = [4, 4]

// The first stage runs ahead by one. Zeros are prepared on each stage, sums are returned as they are: nothing to apply.
// CHECK: rhino.schedule = {microbatches = 4 : i64, schedule = "1f1b", stages = 2 : i64
// CHECK-SAME: tasks = {{\[\[}}{level = 0 : i64, stage = 0 : i64, task = "prepare"}, {microbatch = 0 : i64, stage = 0 : i64, task = "forward"}, {microbatch = 0 : i64, of = "forward", peer = 1 : i64, stage = 0 : i64, task = "send"}, {microbatch = 1 : i64, stage = 0 : i64, task = "forward"}, {microbatch = 1 : i64, of = "forward", peer = 1 : i64, stage = 0 : i64, task = "send"}, {microbatch = 0 : i64, of = "backward", peer = 1 : i64, stage = 0 : i64, task = "recv"}, {microbatch = 0 : i64, stage = 0 : i64, task = "backward"}
// CHECK-NOT: task = "apply"
// CHECK-SAME: warmup = [2, 1]
// CHECK: mpmd.fragment

// Stage 1 sends its gradient before it sums; stage 0, which nobody waits for, is not split.
// ZERO: schedule = "zero-bubble", split = [1], stages = 2
// ZERO-SAME: {microbatch = 0 : i64, stage = 1 : i64, task = "backward"}, {microbatch = 0 : i64, of = "backward", peer = 0 : i64, stage = 1 : i64, task = "send"}

// Fragments that are split are scheduled so under any name.
// DELAY: schedule = "1f1b", split = [1], stages = 2
// DELAY: 46 tasks
// DELAY: 8 transfers

// EAGER: schedule = "eager-1f1b", stages = 2
// EAGER-SAME: warmup = [3, 1]

// One group has all tasks.
// ONE: schedule = "interleaved-1f1b", stages = 2 : i64, tasks = {{\[\[}}{level = 0 : i64, stage = 0 : i64, task = "prepare"}, {level = 0 : i64, stage = 1 : i64, task = "prepare"}
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.microbatches = {count = 4 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y = stablehlo.exponential %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %e = stablehlo.cosine %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %g1 = stablehlo.sine %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %d = stablehlo.negate %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b1 = stablehlo.add %a1, %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b0 = stablehlo.add %a0, %d {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#1, %r#2 : tensor<4xf32>, tensor<4xf32>
}
