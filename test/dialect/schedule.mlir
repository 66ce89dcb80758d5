// rhino.schedule: the task lists, one per device group.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: rhino.schedule = {microbatches = 1 : i64, schedule = "1f1b", stages = 2 : i64
module attributes {rhino.schedule = {schedule = "1f1b", stages = 2 : i64, microbatches = 1 : i64, tasks = [
  [{task = "forward", stage = 0 : i64, microbatch = 0 : i64}, {task = "send", stage = 0 : i64, microbatch = 0 : i64, peer = 1 : i64}],
  [{task = "recv", stage = 1 : i64, microbatch = 0 : i64, peer = 0 : i64}, {task = "apply", stage = 1 : i64}]
]}} {
}
