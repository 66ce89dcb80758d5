// rhino-estimate of a step in fragments: its task lists, played with what the text says of fragments, transfers and bytes.
// RUN: rhino-opt %s --rhino-form-fragments=split-backward --rhino-schedule=schedule=gpipe -o %t
// RUN: rhino-opt %t --rhino-estimate=topology=p3.8xlarge:2 2>&1 | filecheck %s
// Another schedule, another step.
// RUN: rhino-opt %t --rhino-schedule=schedule=zero-bubble --rhino-estimate=topology=p3.8xlarge:2 2>&1 | filecheck %s --check-prefix=ZERO
// Nothing is written.
// RUN: rhino-opt %t --rhino-estimate=topology=p3.8xlarge:2 2>/dev/null | diff %t -
// Without task lists there is nothing to play; a cluster that has too few devices is another one.
// RUN: not rhino-opt %s --rhino-form-fragments --rhino-estimate=topology=p3.8xlarge:2 2>&1 | filecheck %s --check-prefix=NONE
// RUN: sed 's/m1 = \[1\]/m1 = [9]/; s/stage1 = \[1\]/stage1 = [9]/' %t > %t.far
// RUN: not rhino-opt %t.far --rhino-estimate=topology=p3.8xlarge:2 2>&1 | filecheck %s --check-prefix=FAR
// Lists that are not of these fragments.
// RUN: sed 's/task = "weight"/task = "accumulate"/' %t > %t.wrong
// RUN: not rhino-opt %t.wrong --rhino-estimate=topology=p3.8xlarge:2 2>&1 | filecheck %s --check-prefix=WRONG

// Four forwards' results are there at once.
// CHECK: remark: step {{[0-9.]+}} us = 2 stages, 4 micro-batches, gpipe; bubble {{[0-9.]+}}%; peak 0.00 MiB on group
// CHECK: remark: group 0: computes {{[0-9.]+}} us, waits {{[0-9.]+}} us for what is on its way; peak 0.00 MiB with 4 micro-batches in flight
// CHECK: remark: group 1: computes {{[0-9.]+}} us, {{.*}} with 4 micro-batches in flight
// ZERO: remark: step {{[0-9.]+}} us = 2 stages, 4 micro-batches, zero-bubble;
// ZERO: remark: group 1: {{.*}} with {{[12]}} micro-batches in flight
// NONE: error: the module is in fragments and has no rhino.schedule
// FAR: error: rhino.placement has device 9, but cluster p3.8xlarge:2 has 8 devices
// WRONG: error: rhino.schedule is not one of these fragments:
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.microbatches = {count = 4 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %y = stablehlo.exponential %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %e = stablehlo.cosine %y {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %g1 = stablehlo.sine %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %d = stablehlo.negate %e {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b1 = stablehlo.add %a1, %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
    %b0 = stablehlo.add %a0, %d {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#1, %r#2 : tensor<4xf32>, tensor<4xf32>
}
