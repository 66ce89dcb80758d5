// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// Missing keys are named one by one.
// expected-error @+4 {{rhino.plan has no key 'mesh'}}
// expected-error @+3 {{rhino.plan has no key 'predicted'}}
// expected-error @+2 {{rhino.plan.level must be one of "O0", "O1", "O2", got "O7"}}
// expected-error @+1 {{rhino.plan.schema must be an integer, got "1"}}
module attributes {rhino.plan = {schema = "1", level = "O7", cluster = "c", stages = 1 : i64, microbatches = 1 : i64, schedule = "none"}} {
}

// -----

// The path leads to the value at fault, however deep.
// expected-error @+3 {{rhino.plan.mesh[0] must be [string, i64 >= 1], got ['x']}}
// expected-error @+2 {{rhino.plan.predicted.comm_bytes.all-redcue is not known; did you mean all-reduce? known: all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute}}
// expected-error @+1 {{rhino.plan.alternatives[0] has no key 'why'}}
module attributes {rhino.plan = {
  schema = 1 : i64, level = "O1", cluster = "c", mesh = [["x"]], stages = 1 : i64, microbatches = 1 : i64, schedule = "none",
  predicted = {step_time_s = 1.0 : f64, compute_s = 1.0 : f64, comm_s = 1.0 : f64, bubble_s = 0.0 : f64, peak_bytes = 1 : i64,
               comm_bytes = {"all-redcue" = 1 : i64}},
  alternatives = [{name = "other"}]}} {
}

// -----

// A later version is not read as if it were this one.
// expected-error @+1 {{rhino.plan.schema is 2, but this version of rhino reads 1; use a newer rhino}}
module attributes {rhino.plan = {
  schema = 2 : i64, level = "O1", cluster = "c", mesh = [["x", 4 : i64]], stages = 1 : i64,
  microbatches = 1 : i64, schedule = "none",
  predicted = {step_time_s = 1.0 : f64, compute_s = 1.0 : f64, comm_s = 1.0 : f64, bubble_s = 0.0 : f64, peak_bytes = 1 : i64,
               comm_bytes = {}}}} {
}

// -----

// An axis is listed once.
// expected-error @+1 {{rhino.plan.mesh lists axis 'x' twice; give each axis its own name}}
module attributes {rhino.plan = {
  schema = 1 : i64, level = "O1", cluster = "c", mesh = [["x", 2 : i64], ["x", 2 : i64]], stages = 1 : i64,
  microbatches = 1 : i64, schedule = "none",
  predicted = {step_time_s = 1.0 : f64, compute_s = 1.0 : f64, comm_s = 1.0 : f64, bubble_s = 0.0 : f64, peak_bytes = 1 : i64,
               comm_bytes = {}}}} {
}
