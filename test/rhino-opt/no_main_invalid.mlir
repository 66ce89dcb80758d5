// A module without @main: rhino passes refuse it, and so do we before a C++ pass that would end the process with an abort.
// RUN: rhino-opt %s --rhino-classify-args --verify-diagnostics
// RUN: not rhino-opt %s --sdy-propagation-pipeline 2>&1 | filecheck %s
// RUN: not rhino-opt %s --sdy-user-priority-propagate 2>&1 | filecheck %s
// RUN: not rhino-opt %s --sdy-export-pipeline 2>&1 | filecheck %s

// CHECK: no_main_invalid.mlir:12:1: error: 'sdy-{{.*}}' needs a function @main, and the module has none
// CHECK: note: rename the entry function to @main

// expected-error @+2 {{'rhino-classify-args' needs a function @main; the module has @forward, @backward}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
  func.func @forward() {
    return
  }
  func.func @backward() {
    return
  }
}
