// Where memory makes one program lose more than a third of its step, a pipeline is looked for unasked.
// RUN: rhino-opt %s --rhino-plan-parallelism='topology=p3.16xlarge:2 memory-limit=50000000' | filecheck %s
// RUN: not rhino-opt %s --rhino-plan-sharding='topology=p3.16xlarge:2 memory-limit=50000000 costly=refuse' 2>&1 | filecheck %s --check-prefix=REFUSED
// RUN: not rhino-opt %s --rhino-plan-sharding='topology=p3.16xlarge:2 memory-limit=50000000 rival=0.0122' 2>&1 | filecheck %s --check-prefix=RIVAL

// CHECK: rhino.plan = {alternatives = [
// CHECK-SAME: {name = "one program", why = "no plan of one program that fits takes less than the 0.00957 s there are"}
// CHECK-SAME: step_time_s = 0.00956
// CHECK-SAME: stages = 2 : i64

// REFUSED: plan_parallelism_costly.mlir:[[LINE:[0-9]+]]:1: error: one program that fits takes {{0.0[0-9]*}} s or more, for want of memory
// RIVAL: error: no plan of one program that fits takes less than the 0.0122 s there are

func.func @main(
    %w0: tensor<4096x4096xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %w1: tensor<4096x4096xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32}, %w2: tensor<4096x4096xf32> {rhino.role = "param", tf.aliasing_output = 2 : i32}, %w3: tensor<4096x4096xf32> {rhino.role = "param", tf.aliasing_output = 3 : i32},
    %x: tensor<1024x4096xf32> {rhino.role = "batch"}) -> (tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>) {
  %rate = stablehlo.constant dense<1.0e-03> : tensor<4096x4096xf32>
  %h1 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %a1 = stablehlo.tanh %h1 : tensor<1024x4096xf32>
  %h2 = stablehlo.dot_general %a1, %w1, contracting_dims = [1] x [0] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %a2 = stablehlo.tanh %h2 : tensor<1024x4096xf32>
  %h3 = stablehlo.dot_general %a2, %w2, contracting_dims = [1] x [0] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %a3 = stablehlo.tanh %h3 : tensor<1024x4096xf32>
  %h4 = stablehlo.dot_general %a3, %w3, contracting_dims = [1] x [0] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %a4 = stablehlo.tanh %h4 : tensor<1024x4096xf32>
  %d3 = stablehlo.multiply %a4, %a4 : tensor<1024x4096xf32>
  %g3 = stablehlo.dot_general %a3, %d3, contracting_dims = [0] x [0] : (tensor<1024x4096xf32>, tensor<1024x4096xf32>) -> tensor<4096x4096xf32>
  %s3 = stablehlo.multiply %g3, %rate : tensor<4096x4096xf32>
  %n3 = stablehlo.subtract %w3, %s3 : tensor<4096x4096xf32>
  %b3 = stablehlo.dot_general %d3, %w3, contracting_dims = [1] x [1] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %d2 = stablehlo.multiply %b3, %a3 : tensor<1024x4096xf32>
  %g2 = stablehlo.dot_general %a2, %d2, contracting_dims = [0] x [0] : (tensor<1024x4096xf32>, tensor<1024x4096xf32>) -> tensor<4096x4096xf32>
  %s2 = stablehlo.multiply %g2, %rate : tensor<4096x4096xf32>
  %n2 = stablehlo.subtract %w2, %s2 : tensor<4096x4096xf32>
  %b2 = stablehlo.dot_general %d2, %w2, contracting_dims = [1] x [1] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %d1 = stablehlo.multiply %b2, %a2 : tensor<1024x4096xf32>
  %g1 = stablehlo.dot_general %a1, %d1, contracting_dims = [0] x [0] : (tensor<1024x4096xf32>, tensor<1024x4096xf32>) -> tensor<4096x4096xf32>
  %s1 = stablehlo.multiply %g1, %rate : tensor<4096x4096xf32>
  %n1 = stablehlo.subtract %w1, %s1 : tensor<4096x4096xf32>
  %b1 = stablehlo.dot_general %d1, %w1, contracting_dims = [1] x [1] : (tensor<1024x4096xf32>, tensor<4096x4096xf32>) -> tensor<1024x4096xf32>
  %d0 = stablehlo.multiply %b1, %a1 : tensor<1024x4096xf32>
  %g0 = stablehlo.dot_general %x, %d0, contracting_dims = [0] x [0] : (tensor<1024x4096xf32>, tensor<1024x4096xf32>) -> tensor<4096x4096xf32>
  %s0 = stablehlo.multiply %g0, %rate : tensor<4096x4096xf32>
  %n0 = stablehlo.subtract %w0, %s0 : tensor<4096x4096xf32>
  return %n0, %n1, %n2, %n3 : tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>
}
