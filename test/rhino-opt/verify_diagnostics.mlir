// Every way to say which line a diagnostic is on.
// RUN: rhino-opt %s --sdy-populate-op-sharding-rules --rhino-verify --verify-diagnostics --split-input-file

func.func @same_line(%x: tensor<4xf32> {rhino.role = "weight"}) { // expected-error {{must be one of "param"}}
  return
}

// -----

// expected-error @+2 {{got "two lines down"}}

func.func @lines_below(%x: tensor<4xf32> {rhino.role = "two lines down"}, %y: tensor<4xf32> {rhino.role = "one line up"}) {
  // expected-error @-1 {{got "one line up"}}
  return
}

// -----

// Lines that hold only such comments do not count for @below and @above.
// expected-error @below {{got "first"}}
// expected-error @below {{got "second"}}
func.func @below(%x: tensor<4xf32> {rhino.role = "first"}, %y: tensor<4xf32> {rhino.role = "second"}, %z: tensor<4xf32> {rhino.role = "third"}) {
  // expected-error @above {{got "third"}}
  return
}

// -----

// A note is expected at its own line, like the error it belongs to.
// expected-error @+2 {{unknown attribute 'rhino.rloe'}}
// expected-note @+1 {{did you mean 'rhino.role'?}}
func.func @notes(%x: tensor<4xf32> {rhino.rloe = "param"}) {
  return
}

// -----

// A count asks for that many equal ones.
// expected-error @+1 2 {{rhino.role must be}}
func.func @count(%x: tensor<4xf32> {rhino.role = "a"}, %y: tensor<4xf32> {rhino.role = "b"}) {
  return
}

// -----

// Without a count one expectation stands for all equal diagnostics of its line.
// expected-error @+1 {{rhino.role must be}}
func.func @equal_ones(%x: tensor<4xf32> {rhino.role = "a"}, %y: tensor<4xf32> {rhino.role = "b"}) {
  return
}

// -----

// A line that has such a comment at its end does not count for @below and @above either, as in mlir-opt.
// expected-error @below {{got "second"}}
module attributes {rhino.placement = 3 : i64} { // expected-error {{rhino.placement}}
  func.func @below_skips(%x: tensor<4xf32> {rhino.role = "second"}) {
    return
  }
}

// -----

// Nor is that of a warning, which has no words before it.
func.func @operation_of_a_warning(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-warning @+1 {{custom call @nobody is unknown to SDY sharding rule registry}}
  %0 = stablehlo.custom_call @nobody(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// The operation that jaxlib's bindings attach to an error is no note that must be expected, however many lines it has.
func.func @operation_as_note(%x: tensor<4xi32>) -> tensor<i32> {
  %0 = stablehlo.constant dense<0> : tensor<i32>
  // expected-error @+1 {{Reduction-region must take 2 parameters}}
  %1 = "stablehlo.reduce"(%x, %0) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<i32>):
    stablehlo.return %a : tensor<i32>
  }) : (tensor<4xi32>, tensor<i32>) -> tensor<i32>
  return %1 : tensor<i32>
}
