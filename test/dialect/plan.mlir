// rhino.plan: the summary of a plan, with the alternatives that lost; further keys may be added.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: mesh = {{\[}}["x", 2], ["y", 4]]
// CHECK-SAME: "all-reduce" = 123
module attributes {rhino.plan = {
  schema = 1 : i64, level = "O1", cluster = "dgx-h100:1", mesh = [["x", 2 : i64], ["y", 4 : i64]], stages = 1 : i64,
  microbatches = 1 : i64, schedule = "none",
  predicted = {step_time_s = 1.0e-3 : f64, compute_s = 9.0e-4 : f64, comm_s = 1.0e-4 : f64, bubble_s = 0.0 : f64,
               peak_bytes = 4096 : i64, comm_bytes = {"all-reduce" = 123 : i64}, collectives = {"all-reduce" = 12 : i64},
               memory = {argument_bytes = 1 : i64}},
  search = {candidates = 12 : i64, gap = 0.0 : f64},
  alternatives = [{name = "mesh 8x1", step_time_s = 2.0e-3 : f64, peak_bytes = 1 : i64, why = "slower"}],
  written_by = "a test"}} {
}
