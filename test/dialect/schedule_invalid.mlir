// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+4 {{rhino.schedule.tasks[0][0].stage is 2, but there are 2 stages}}
// expected-error @+3 {{rhino.schedule.tasks[0][1].microbatch is 1, but there are 1 microbatches}}
// expected-error @+2 {{rhino.schedule.tasks[1][0] has no peer, which send and recv, and only they, have}}
// expected-error @+1 {{rhino.schedule.tasks[1][1].peer is 5, but there are 2 stages}}
module attributes {rhino.schedule = {schedule = "gpipe", stages = 2 : i64, microbatches = 1 : i64, tasks = [
  [{task = "forward", stage = 2 : i64, microbatch = 0 : i64}, {task = "backward", stage = 0 : i64, microbatch = 1 : i64}],
  [{task = "recv", stage = 1 : i64, microbatch = 0 : i64}, {task = "send", stage = 1 : i64, microbatch = 0 : i64, peer = 5 : i64}]
]}} {
}

// -----

// expected-error @+2 {{rhino.schedule.schedule must be one of}}
// expected-error @+1 {{rhino.schedule.tasks[0][0].task must be one of "prepare"}}
module attributes {rhino.schedule = {schedule = "fifo", stages = 1 : i64, microbatches = 1 : i64, tasks = [
  [{task = "think", stage = 0 : i64}]
]}} {
}

// -----

// expected-error @+4 {{rhino.schedule.tasks[0][0] has a level, as only prepare and apply, and what they send, do}}
// expected-error @+3 {{rhino.schedule.tasks[0][1] says what its value is of, as only send and recv do}}
// expected-error @+2 {{rhino.schedule.warmup has 1 values, but there are 2 stages}}
// expected-error @+1 {{rhino.schedule.split lists stage 2, but there are 2 stages}}
module attributes {rhino.schedule = {schedule = "1f1b", stages = 2 : i64, microbatches = 1 : i64, warmup = [1], split = [2],
  tasks = [[{task = "forward", stage = 0 : i64, microbatch = 0 : i64, level = 0 : i64},
            {task = "forward", stage = 0 : i64, microbatch = 0 : i64, of = "forward"}]]}} {
}
