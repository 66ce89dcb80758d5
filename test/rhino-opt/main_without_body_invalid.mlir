// A @main that is only declared has nothing to plan.
// RUN: rhino-opt %s --rhino-classify-args --verify-diagnostics
// RUN: not rhino-opt %s --sdy-propagation-pipeline 2>&1 | filecheck %s

// CHECK: main_without_body_invalid.mlir:8:1: error: 'sdy-propagation-pipeline' needs the entry function to have a body
// expected-error @+2 {{'rhino-classify-args' needs @main to have a body}}
// expected-note @+1 {{give the module that defines it}}
func.func private @main(tensor<4xf32>)
