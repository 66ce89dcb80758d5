// What stages compute again is searched together with them.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 mesh=4 microbatches=2 memory-limit=3000000' > %t
// RUN: filecheck %s < %t
// RUN: rhino-opt %t --rhino-verify | filecheck %s
// RUN: rhino-opt %t --rhino-estimate=topology=dgx-h100:1 2>&1 >/dev/null | filecheck %s --check-prefix=ESTIMATE
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 mesh=4 microbatches=2' | filecheck %s --check-prefix=FREE
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 mesh=4 microbatches=2 memory-limit=3000000 remat=keep' 2>&1 | filecheck %s --check-prefix=KEEP
// RUN: not rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 mesh=4 microbatches=2 memory-limit=400000' 2>&1 | filecheck %s --check-prefix=NOTHING

// CHECK: rhino.plan
// CHECK-SAME: recomputation = {count = 1 : i64, flops = 201326592 : i64, {{.*}}loops = 3 : i64, policy = "layers"
// CHECK-SAME: stages = 2 : i64
// CHECK: func.func private @microbatch
// Backward does layers again from what they read.
// CHECK: mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0>
// CHECK: stablehlo.tanh
// CHECK: stablehlo.cosine
// ESTIMATE: 2 stages, 2 micro-batches

// Where there is room nothing is.
// FREE-NOT: recomputation
// FREE: stages = 2 : i64

// KEEP: no pipeline fits in 2.86 MiB per device on dgx-h100:1
// KEEP: use more devices, recompute activations (jax.checkpoint), or make the batch smaller

// NOTHING: no pipeline fits in 391 KiB per device on dgx-h100:1: {{.*}} computing again all of 3 loops needs
// NOTHING: use more devices, or make the batch smaller
func.func @main(%w: tensor<3x64x64xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %x: tensor<8192x64xf32> {rhino.role = "batch"}) -> (tensor<3x64x64xf32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x8192x64xf32>
  %none = stablehlo.constant dense<0.0> : tensor<3x64x64xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<8192x64xf32>
  %f:6 = stablehlo.while(%i = %c0, %h = %x, %v = %w, %xs = %zeros, %ts = %zeros, %cs = %zeros) : tensor<i32>, tensor<8192x64xf32>, tensor<3x64x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %v, %i, %c0, %c0, sizes = [1, 64, 64] : (tensor<3x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %2 = stablehlo.dot_general %h, %1, contracting_dims = [1] x [0] : (tensor<8192x64xf32>, tensor<64x64xf32>) -> tensor<8192x64xf32>
    %3 = stablehlo.tanh %2 : tensor<8192x64xf32>
    %4 = stablehlo.cosine %2 : tensor<8192x64xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<8192x64xf32>
    %6 = stablehlo.reshape %h : (tensor<8192x64xf32>) -> tensor<1x8192x64xf32>
    %7 = stablehlo.dynamic_update_slice %xs, %6, %i, %c0, %c0 : (tensor<3x8192x64xf32>, tensor<1x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8192x64xf32>
    %8 = stablehlo.reshape %3 : (tensor<8192x64xf32>) -> tensor<1x8192x64xf32>
    %9 = stablehlo.dynamic_update_slice %ts, %8, %i, %c0, %c0 : (tensor<3x8192x64xf32>, tensor<1x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8192x64xf32>
    %10 = stablehlo.reshape %4 : (tensor<8192x64xf32>) -> tensor<1x8192x64xf32>
    %11 = stablehlo.dynamic_update_slice %cs, %10, %i, %c0, %c0 : (tensor<3x8192x64xf32>, tensor<1x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8192x64xf32>
    %12 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %12, %5, %v, %7, %9, %11 : tensor<i32>, tensor<8192x64xf32>, tensor<3x64x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>
  }
  %loss = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8192x64xf32>, tensor<f32>) -> tensor<f32>
  %b:7 = stablehlo.while(%i = %c0, %g = %seed, %gw = %none, %v = %w, %xs = %f#3, %ts = %f#4, %cs = %f#5) : tensor<i32>, tensor<8192x64xf32>, tensor<3x64x64xf32>, tensor<3x64x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.subtract %c2, %i : tensor<i32>
    %1 = stablehlo.dynamic_slice %v, %0, %c0, %c0, sizes = [1, 64, 64] : (tensor<3x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.dynamic_slice %xs, %0, %c0, %c0, sizes = [1, 8192, 64] : (tensor<3x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8192x64xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x8192x64xf32>) -> tensor<8192x64xf32>
    %5 = stablehlo.dynamic_slice %ts, %0, %c0, %c0, sizes = [1, 8192, 64] : (tensor<3x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8192x64xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x8192x64xf32>) -> tensor<8192x64xf32>
    %7 = stablehlo.dynamic_slice %cs, %0, %c0, %c0, sizes = [1, 8192, 64] : (tensor<3x8192x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8192x64xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x8192x64xf32>) -> tensor<8192x64xf32>
    %9 = stablehlo.multiply %6, %8 : tensor<8192x64xf32>
    %10 = stablehlo.multiply %g, %9 : tensor<8192x64xf32>
    %11 = stablehlo.dot_general %4, %10, contracting_dims = [0] x [0] : (tensor<8192x64xf32>, tensor<8192x64xf32>) -> tensor<64x64xf32>
    %12 = stablehlo.reshape %11 : (tensor<64x64xf32>) -> tensor<1x64x64xf32>
    %13 = stablehlo.dynamic_update_slice %gw, %12, %0, %c0, %c0 : (tensor<3x64x64xf32>, tensor<1x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x64x64xf32>
    %14 = stablehlo.dot_general %10, %2, contracting_dims = [1] x [1] : (tensor<8192x64xf32>, tensor<64x64xf32>) -> tensor<8192x64xf32>
    %15 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %15, %14, %13, %v, %xs, %ts, %cs : tensor<i32>, tensor<8192x64xf32>, tensor<3x64x64xf32>, tensor<3x64x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>, tensor<3x8192x64xf32>
  }
  %new = stablehlo.subtract %w, %b#2 : tensor<3x64x64xf32>
  return %new, %loss : tensor<3x64x64xf32>, tensor<f32>
}
