// rhino.schedule: the task lists, one per device group.
// RUN: rhino-opt %s --rhino-verify --split-input-file | filecheck %s

// CHECK: rhino.schedule = {microbatches = 1 : i64, schedule = "1f1b", stages = 2 : i64
module attributes {rhino.schedule = {schedule = "1f1b", stages = 2 : i64, microbatches = 1 : i64, tasks = [
  [{task = "forward", stage = 0 : i64, microbatch = 0 : i64}, {task = "send", stage = 0 : i64, microbatch = 0 : i64, peer = 1 : i64}],
  [{task = "recv", stage = 1 : i64, microbatch = 0 : i64, peer = 0 : i64}, {task = "apply", stage = 1 : i64}]
]}} {
}

// -----

// What is made once per step has no micro-batch; levels order what prepare and apply send. A split stage has weight tasks.
// CHECK: split = [1]
// CHECK-SAME: {level = 0 : i64, of = "prepare", peer = 1 : i64, stage = 0 : i64, task = "send"}
// CHECK-SAME: warmup = [1, 1]
module attributes {rhino.schedule = {schedule = "zero-bubble", stages = 2 : i64, microbatches = 1 : i64,
  warmup = [1, 1], split = [1], tasks = [
  [{task = "prepare", stage = 0 : i64, level = 0 : i64},
   {task = "send", stage = 0 : i64, peer = 1 : i64, of = "prepare", level = 0 : i64}],
  [{task = "recv", stage = 1 : i64, peer = 0 : i64, of = "prepare", level = 0 : i64},
   {task = "backward", stage = 1 : i64, microbatch = 0 : i64}, {task = "weight", stage = 1 : i64, microbatch = 0 : i64},
   {task = "free", stage = 1 : i64, microbatch = 0 : i64}, {task = "apply", stage = 1 : i64, level = 0 : i64}]
]}} {
}
