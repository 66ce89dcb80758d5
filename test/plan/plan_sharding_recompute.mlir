// Where the fastest plan of a step does not fit, what it computes again is searched together with its micro-batches.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s --check-prefix=FREE
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 memory-limit=19200000" | filecheck %s --check-prefix=AGAIN
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 mesh=8 memory-limit=19200000" | filecheck %s --check-prefix=AGAIN
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 memory-limit=19200000 remat=keep" | filecheck %s --check-prefix=KEEP
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 memory-limit=19200000 microbatches=2" | filecheck %s --check-prefix=ASKED

// What fits keeps what it kept, but for what is fused into the kernels that read it: one stack of three, of products,
// and what layers read.
// FREE: recomputation = {count = 0 : i64, flops = 0 : i64, fuses = true, {{.*}}policy = "keep"
// FREE: func.func @main
// FREE: %[[F:.*]]:5 = stablehlo.while
// FREE: stablehlo.while
// FREE: stablehlo.tanh
// FREE: stablehlo.cosine

// Doing layers again costs less than a second micro-batch; the plan tells what would have kept more.
// AGAIN: rhino.plan
// AGAIN-SAME: name = "1 micro-batch, computing again nothing but what is fused into its readers"
// AGAIN-SAME: microbatches = 1 : i64
// AGAIN-SAME: recomputation = {count = 1 : i64, flops = 1610612736 : i64, {{.*}}loops = 1 : i64, policy = "layers"
// Of three stacks one is left, of what layers read.
// AGAIN: %[[F:.*]]:4 = stablehlo.while
// AGAIN: stablehlo.while
// AGAIN: stablehlo.dot_general
// AGAIN: stablehlo.tanh
// AGAIN: stablehlo.cosine

// With remat=keep there are micro-batches instead.
// KEEP: rhino.plan
// KEEP-NOT: recomputation
// KEEP: microbatches = 2 : i64

// In as many micro-batches as asked for no product is done again.
// ASKED: microbatches = 2 : i64
// ASKED-SAME: recomputation = {count = 0 : i64, flops = 0 : i64, fuses = true
// ASKED: func.func @main
func.func @main(%w: tensor<3x64x64xf32> {tf.aliasing_output = 0 : i32, rhino.role = "param"}, %x: tensor<65536x64xf32> {rhino.role = "batch"}) -> (tensor<3x64x64xf32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x65536x64xf32>
  %none = stablehlo.constant dense<0.0> : tensor<3x64x64xf32>
  %seed = stablehlo.constant dense<1.0> : tensor<65536x64xf32>
  %f:6 = stablehlo.while(%i = %c0, %h = %x, %v = %w, %xs = %zeros, %ts = %zeros, %cs = %zeros) : tensor<i32>, tensor<65536x64xf32>, tensor<3x64x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %v, %i, %c0, %c0, sizes = [1, 64, 64] : (tensor<3x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %2 = stablehlo.dot_general %h, %1, contracting_dims = [1] x [0] : (tensor<65536x64xf32>, tensor<64x64xf32>) -> tensor<65536x64xf32>
    %3 = stablehlo.tanh %2 : tensor<65536x64xf32>
    %4 = stablehlo.cosine %2 : tensor<65536x64xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<65536x64xf32>
    %6 = stablehlo.reshape %h : (tensor<65536x64xf32>) -> tensor<1x65536x64xf32>
    %7 = stablehlo.dynamic_update_slice %xs, %6, %i, %c0, %c0 : (tensor<3x65536x64xf32>, tensor<1x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x65536x64xf32>
    %8 = stablehlo.reshape %3 : (tensor<65536x64xf32>) -> tensor<1x65536x64xf32>
    %9 = stablehlo.dynamic_update_slice %ts, %8, %i, %c0, %c0 : (tensor<3x65536x64xf32>, tensor<1x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x65536x64xf32>
    %10 = stablehlo.reshape %4 : (tensor<65536x64xf32>) -> tensor<1x65536x64xf32>
    %11 = stablehlo.dynamic_update_slice %cs, %10, %i, %c0, %c0 : (tensor<3x65536x64xf32>, tensor<1x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x65536x64xf32>
    %12 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %12, %5, %v, %7, %9, %11 : tensor<i32>, tensor<65536x64xf32>, tensor<3x64x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>
  }
  %loss = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<65536x64xf32>, tensor<f32>) -> tensor<f32>
  %b:7 = stablehlo.while(%i = %c0, %g = %seed, %gw = %none, %v = %w, %xs = %f#3, %ts = %f#4, %cs = %f#5) : tensor<i32>, tensor<65536x64xf32>, tensor<3x64x64xf32>, tensor<3x64x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>
  cond {
    %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %0 = stablehlo.subtract %c2, %i : tensor<i32>
    %1 = stablehlo.dynamic_slice %v, %0, %c0, %c0, sizes = [1, 64, 64] : (tensor<3x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.dynamic_slice %xs, %0, %c0, %c0, sizes = [1, 65536, 64] : (tensor<3x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x65536x64xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x65536x64xf32>) -> tensor<65536x64xf32>
    %5 = stablehlo.dynamic_slice %ts, %0, %c0, %c0, sizes = [1, 65536, 64] : (tensor<3x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x65536x64xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x65536x64xf32>) -> tensor<65536x64xf32>
    %7 = stablehlo.dynamic_slice %cs, %0, %c0, %c0, sizes = [1, 65536, 64] : (tensor<3x65536x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x65536x64xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x65536x64xf32>) -> tensor<65536x64xf32>
    %9 = stablehlo.multiply %6, %8 : tensor<65536x64xf32>
    %10 = stablehlo.multiply %g, %9 : tensor<65536x64xf32>
    %11 = stablehlo.dot_general %4, %10, contracting_dims = [0] x [0] : (tensor<65536x64xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
    %12 = stablehlo.reshape %11 : (tensor<64x64xf32>) -> tensor<1x64x64xf32>
    %13 = stablehlo.dynamic_update_slice %gw, %12, %0, %c0, %c0 : (tensor<3x64x64xf32>, tensor<1x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x64x64xf32>
    %14 = stablehlo.dot_general %10, %2, contracting_dims = [1] x [1] : (tensor<65536x64xf32>, tensor<64x64xf32>) -> tensor<65536x64xf32>
    %15 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %15, %14, %13, %v, %xs, %ts, %cs : tensor<i32>, tensor<65536x64xf32>, tensor<3x64x64xf32>, tensor<3x64x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>, tensor<3x65536x64xf32>
  }
  %new = stablehlo.subtract %w, %b#2 : tensor<3x64x64xf32>
  return %new, %loss : tensor<3x64x64xf32>, tensor<f32>
}
