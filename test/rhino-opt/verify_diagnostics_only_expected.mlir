// With only-expected, what is reported beyond the expectations is fine; an expectation that is not met is none the less wrong.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics=only-expected --split-input-file="// ====="
// RUN: not rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file="// =====" 2>&1 | filecheck %s
// RUN: not rhino-opt %s --rhino-verify --verify-diagnostics=none --split-input-file="// =====" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not rhino-opt %s --verify-diagnostics=most 2>&1 | filecheck %s --check-prefix=MODE

// MODE: rhino-opt: error: --verify-diagnostics is 'most' but must be all or only-expected

// CHECK: verify_diagnostics_only_expected.mlir:12:23: error: unexpected error: rhino.role must be
// NONE: verify_diagnostics_only_expected.mlir:12:23: error: rhino.role must be

func.func @unexpected(%x: tensor<4xf32> {rhino.role = "weight"}) {
  return
}

// =====

func.func @expected(%x: tensor<4xf32> {rhino.role = "weight"}) { // expected-error {{must be one of "param"}}
  return
}
