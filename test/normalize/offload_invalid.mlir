// RUN: not rhino-opt %s --rhino-offload=count=-2 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not rhino-opt %s --rhino-offload 2>&1 | filecheck %s --check-prefix=SHAPE

// COUNT: 'rhino-offload' needs a count of updates, got -2
// COUNT: give -1 for all of them
// SHAPE: offload_invalid.mlir:7:17: error: 'rhino-offload' needs static shapes, got 'tensor<?x4xf32>'
func.func @main(%m: tensor<?x4xf32> {rhino.role = "opt_state", tf.aliasing_output = 0 : i32}) -> tensor<?x4xf32> {
  return %m : tensor<?x4xf32>
}
