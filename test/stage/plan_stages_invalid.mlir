// Steps without a loop or roles, with fewer units than stages, or too large; and options that mean nothing.
// RUN: rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 memory-limit=20000" --split-input-file --verify-diagnostics
// RUN: not rhino-opt %s --rhino-plan-stages=stages=2 --split-input-file 2>&1 | filecheck %s --check-prefix=TOPOLOGY
// RUN: not rhino-opt %s --rhino-plan-stages=topology=dgx-h100:1 --split-input-file 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: not rhino-opt %s --rhino-plan-stages="stages=9 topology=dgx-h100:1" --split-input-file 2>&1 | filecheck %s --check-prefix=DEVICES
// RUN: not rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 balance=-1" --split-input-file 2>&1 | filecheck %s --check-prefix=BALANCE
// RUN: not rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 schedule=lifo" --split-input-file 2>&1 | filecheck %s --check-prefix=SCHEDULE

// TOPOLOGY: 'rhino-plan-stages' needs a topology
// STAGES: stages is 0, not a positive number
// DEVICES: 9 stages for the 8 devices of dgx-h100:1
// BALANCE: balance -1.0 is negative
// SCHEDULE: option 'schedule' is 'lifo' but must be one of gpipe, 1f1b, eager-1f1b

// expected-error @+2 {{the step has no micro-batch loop}}
// expected-note @+1 {{run rhino-split-microbatch{count=N} first}}
func.func @main(%w: tensor<8xf32> {rhino.role = "param"}) -> tensor<8xf32> {
  return %w : tensor<8xf32>
}

// -----

// expected-error @+2 {{no argument of @main is a parameter or part of the batch}}
// expected-note @+1 {{run rhino-classify-args first}}
func.func @main(%w: tensor<8xf32>) -> tensor<8xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %w) : tensor<i32>, tensor<8xf32> attributes {rhino.microbatches = {count = 1 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %n = stablehlo.add %a, %w : tensor<8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %n : tensor<i32>, tensor<8xf32>
  }
  return %r#1 : tensor<8xf32>
}

// -----

// expected-error @+2 {{2 stages, but the step can be divided into 1 units at most}}
// expected-note @+1 {{plan for 1 stages or fewer}}
func.func @main(%w: tensor<8xf32> {rhino.role = "param"}) -> tensor<8xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<0.0> : tensor<8xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %z) : tensor<i32>, tensor<8xf32> attributes {rhino.microbatches = {count = 1 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %n = stablehlo.add %a, %w : tensor<8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %n : tensor<i32>, tensor<8xf32>
  }
  return %r#1 : tensor<8xf32>
}

// -----

// Each weight has 64 KiB, and a stage of four devices may have 80,000 bytes; the first stage needs two weights.
// expected-error @+2 {{would need 131072 bytes of 80000}}
// expected-note @+1 {{plan more stages, more devices per stage}}
func.func @main(%w0: tensor<128x128xf32> {rhino.role = "param"}, %w1: tensor<128x128xf32> {rhino.role = "param"},
                %w2: tensor<128x128xf32> {rhino.role = "param"}, %x: tensor<4x128xf32> {rhino.role = "batch"}) -> tensor<4x128xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<0.0> : tensor<4x128xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %z) : tensor<i32>, tensor<4x128xf32> attributes {rhino.microbatches = {count = 1 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x128xf32>, tensor<128x128xf32>) -> tensor<4x128xf32>
    %1 = stablehlo.dot_general %0, %w1, contracting_dims = [1] x [0] : (tensor<4x128xf32>, tensor<128x128xf32>) -> tensor<4x128xf32>
    %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<4x128xf32>, tensor<128x128xf32>) -> tensor<4x128xf32>
    %n = stablehlo.add %a, %2 : tensor<4x128xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %n : tensor<i32>, tensor<4x128xf32>
  }
  return %r#1 : tensor<4x128xf32>
}
