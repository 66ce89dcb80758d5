// Every problem of a module is reported in one run, in the order of the text. Each kind has its own test in test/dialect.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics
// RUN: not rhino-opt %s --rhino-verify 2>&1 | filecheck %s

// CHECK: error: rhino.cluster must be a dictionary
// CHECK: error: rhino.role belongs on
// CHECK: error: rhino.role must be one of
// CHECK: error: rhino.stage has no key 'phase'
// CHECK-NOT: error

// expected-error @+1 {{rhino.cluster must be a dictionary, got 1}}
module attributes {rhino.cluster = 1 : i64} {
  // expected-error @+2 {{rhino.role belongs on a function argument, not on a function}}
  // expected-error @+1 {{rhino.role must be one of}}
  func.func @main(%x: tensor<4xf32> {rhino.role = ""}) attributes {rhino.role = "param"} {
    // expected-error @+1 {{rhino.stage has no key 'phase'}}
    %0 = stablehlo.negate %x {rhino.stage = {stage = 0 : i64}} : tensor<4xf32>
    return
  }
}
