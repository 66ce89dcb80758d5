// What rhino-form-fragments refuses, and where.
// RUN: rhino-opt %s --rhino-form-fragments --verify-diagnostics --split-input-file

// expected-error @+2 {{@main has no micro-batch loop, but needs one}}
// expected-note @+1 {{run rhino-split-microbatch{count=N} first}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{the first value of the micro-batch loop must be its counter, got 'tensor<4xf32>'}}
  %r = stablehlo.while(%a = %x) : tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    stablehlo.return %a : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error @+1 {{operation in the micro-batch loop has phase 'update', not forward or backward}}
    %b = stablehlo.add %a, %x {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-note @+1 {{made here}}
    %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    // expected-error @+1 {{forward operation of stage 0 reads a value that the forward part of stage 1 makes, but forward edges go to later stages}}
    %b = stablehlo.add %a, %h {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-note @+1 {{made here}}
    %h = stablehlo.tanh %x {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    // expected-error @+1 {{backward operation of stage 1 reads a value that the backward part of stage 0 makes, but backward edges go to earlier stages}}
    %b = stablehlo.add %a, %h {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-note @+1 {{made here}}
    %h = stablehlo.tanh %x {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    // expected-error @+1 {{forward operation of stage 0 reads a value that the backward part of stage 0 makes, but the forward part comes first}}
    %b = stablehlo.add %a, %h {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

// Two stages add to one sum: stage 1 of a micro-batch would wait for stage 0 of the one before.
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error @+2 {{operation of stage 1 reads a value that the loop carries and stage 0 updates: micro-batches would run one after the other}}
    // expected-note @+1 {{let each stage accumulate its own part and add them after the loop}}
    %g = stablehlo.add %a, %x {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b = stablehlo.add %g, %y {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %g = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %h = stablehlo.tanh %g {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    // expected-error @+2 {{operation without rhino.stage reads tensors of stages 0 and 1}}
    // expected-note @+1 {{rhino-plan-stages gives operations their stage}}
    %p = stablehlo.add %g, %h : tensor<4xf32>
    %b = stablehlo.add %a, %p {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error @+2 {{'stablehlo.sort' has no rhino.stage and is too dear to run in every fragment that reads it}}
    // expected-note @+1 {{rhino-plan-stages gives operations their stage}}
    %s = "stablehlo.sort"(%x) ({
    ^bb0(%l: tensor<f32>, %q: tensor<f32>):
      %less = stablehlo.compare LT, %l, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    }) {dimension = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %b = stablehlo.add %a, %s {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error @+2 {{'stablehlo.custom_call' has no rhino.stage and has a side effect}}
    // expected-note @+1 {{rhino-plan-stages gives operations their stage}}
    %s = stablehlo.custom_call @print(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    %b = stablehlo.add %a, %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error @+2 {{value 1 that the micro-batch loop carries is made by 'stablehlo.negate', which has no rhino.stage}}
    // expected-note @+1 {{what a loop carries is updated by an operation with a stage}}
    %b = stablehlo.negate %x : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  // expected-error @+2 {{value 2 that the micro-batch loop carries is made by no operation of the loop}}
  // expected-note @+1 {{what a loop carries is updated by an operation with a stage}}
  %r:3 = stablehlo.while(%i = %c0, %a = %zeros, %b = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %b {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %h, %a : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#2 : tensor<4xf32>
}

// -----

// expected-error @+2 {{the stages need 4 devices, but the cluster 'p3.8xlarge:1' has 2}}
// expected-note @+1 {{plan fewer stages, let them share groups, or give a smaller mesh}}
module attributes {rhino.cluster = {device = "v100", devices_per_host = 2 : i64, hosts = 1 : i64, name = "p3.8xlarge:1"}} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
    cond {
      %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
      %b = stablehlo.add %a, %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
      %j = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}

// -----

// expected-error @+2 {{module has meshes @other, but one @mesh is planned}}
// expected-note @+1 {{drop them or keep @mesh}}
module {
  sdy.mesh @other = <["x"=2]>
  func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
    cond {
      %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %b = stablehlo.add %a, %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
      %j = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}
