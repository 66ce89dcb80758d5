// What differs between expected and reported is an error, and the exit code is 1.
// RUN: not rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file 2>&1 | filecheck %s

// CHECK: verify_diagnostics_invalid.mlir:5:23: error: unexpected error: rhino.role must be one of
func.func @unexpected(%x: tensor<4xf32> {rhino.role = "weight"}) {
  return
}

// -----

// CHECK: verify_diagnostics_invalid.mlir:12:4: error: expected error "nothing is wrong here" was not produced
// expected-error @+1 {{nothing is wrong here}}
func.func @missing() {
  return
}

// -----

// Right text on the wrong line: both sides are reported.
// CHECK: verify_diagnostics_invalid.mlir:23:23: error: unexpected error: rhino.role
// CHECK: verify_diagnostics_invalid.mlir:22:4: error: expected error "rhino.role" was not produced
// expected-error @+2 {{rhino.role}}
func.func @wrong_line(%x: tensor<4xf32> {rhino.role = "weight"}) {
  return
}

// -----

// The severity is another one: said at the expectation.
// CHECK: verify_diagnostics_invalid.mlir:31:4: error: 'error' diagnostic emitted when expecting a 'warning'
// expected-warning @+1 {{rhino.role must be}}
func.func @severity(%x: tensor<4xf32> {rhino.role = "weight"}) {
  return
}

// -----

// A count is exact: the third of these is too many.
// CHECK: verify_diagnostics_invalid.mlir:41:97: error: unexpected error: rhino.role must be
// expected-error @+1 2 {{rhino.role must be}}
func.func @too_many(%x: tensor<4xf32> {rhino.role = "a"}, %y: tensor<4xf32> {rhino.role = "b"}, %z: tensor<4xf32> {rhino.role = "c"}) {
  return
}
