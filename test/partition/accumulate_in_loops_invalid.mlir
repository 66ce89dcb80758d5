// What rhino-accumulate-in-loops refuses: modules without a step. What it cannot rewrite stays.
// RUN: rhino-opt %s --rhino-accumulate-in-loops --verify-diagnostics

// expected-error @+2 {{'rhino-accumulate-in-loops' needs a function @main; the module has no function}}
// expected-note @+1 {{name the step function @main, as jax does}}
module {
}
