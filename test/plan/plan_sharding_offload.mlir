// Where nothing fits the devices, optimizer state is kept by their hosts: as much of it as that takes.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 microbatches=1" | filecheck %s --check-prefix=FREE
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 microbatches=1 memory-limit=8500000" | filecheck %s --check-prefix=SOME
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 mesh=8 microbatches=1 memory-limit=5900000" | filecheck %s --check-prefix=ALL
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 microbatches=1 memory-limit=8000000 offload=none" 2>&1 | filecheck %s --check-prefix=LEFT
// RUN: not rhino-opt %s --rhino-plan-parallelism="topology=dgx-h100:1 microbatches=1 memory-limit=1000000" 2>&1 | filecheck %s --check-prefix=NEITHER

// FREE-NOT: pinned_host
// FREE: return

// Moments of four updates are enough, an eighth of 4 MiB each: the last one's stay.
// SOME: rhino.plan = {{.*}}host_bytes = 4194304 : i64
// SOME: func.func @main
// SOME-SAME-COUNT-8: mhlo.memory_kind = "pinned_host"

// ALL: rhino.plan = {{.*}}host_bytes = 5242880 : i64

// LEFT: memory limit 7.63 MiB per device cannot be met

// NEITHER: error: memory limit 977 KiB per device cannot be met
// NEITHER: note: nor is there a pipeline
// NEITHER: note: nor does it fit so: even with optimizer state on the hosts

func.func @main(%w0: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %w1: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32}, %w2: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 2 : i32}, %w3: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 3 : i32}, %w4: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 4 : i32}, %m0: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 5 : i32}, %m1: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 6 : i32}, %m2: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 7 : i32}, %m3: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 8 : i32}, %m4: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 9 : i32}, %v0: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 10 : i32}, %v1: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 11 : i32}, %v2: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 12 : i32}, %v3: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 13 : i32}, %v4: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 14 : i32}, %x: tensor<64x1024xf32> {rhino.role = "batch"}) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
  %h0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %h1 = stablehlo.dot_general %h0, %w1, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %h2 = stablehlo.dot_general %h1, %w2, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %h3 = stablehlo.dot_general %h2, %w3, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %h4 = stablehlo.dot_general %h3, %w4, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %g4 = stablehlo.dot_general %h3, %h4, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %d4 = stablehlo.dot_general %h4, %w4, contracting_dims = [1] x [1] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %g3 = stablehlo.dot_general %h2, %d4, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %d3 = stablehlo.dot_general %d4, %w3, contracting_dims = [1] x [1] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %g2 = stablehlo.dot_general %h1, %d3, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %d2 = stablehlo.dot_general %d3, %w2, contracting_dims = [1] x [1] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %g1 = stablehlo.dot_general %h0, %d2, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %d1 = stablehlo.dot_general %d2, %w1, contracting_dims = [1] x [1] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  %g0 = stablehlo.dot_general %x, %d1, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %nm0 = stablehlo.add %m0, %g0 : tensor<1024x1024xf32>
  %nm1 = stablehlo.add %m1, %g1 : tensor<1024x1024xf32>
  %nm2 = stablehlo.add %m2, %g2 : tensor<1024x1024xf32>
  %nm3 = stablehlo.add %m3, %g3 : tensor<1024x1024xf32>
  %nm4 = stablehlo.add %m4, %g4 : tensor<1024x1024xf32>
  %s0 = stablehlo.multiply %g0, %g0 : tensor<1024x1024xf32>
  %nv0 = stablehlo.add %v0, %s0 : tensor<1024x1024xf32>
  %s1 = stablehlo.multiply %g1, %g1 : tensor<1024x1024xf32>
  %nv1 = stablehlo.add %v1, %s1 : tensor<1024x1024xf32>
  %s2 = stablehlo.multiply %g2, %g2 : tensor<1024x1024xf32>
  %nv2 = stablehlo.add %v2, %s2 : tensor<1024x1024xf32>
  %s3 = stablehlo.multiply %g3, %g3 : tensor<1024x1024xf32>
  %nv3 = stablehlo.add %v3, %s3 : tensor<1024x1024xf32>
  %s4 = stablehlo.multiply %g4, %g4 : tensor<1024x1024xf32>
  %nv4 = stablehlo.add %v4, %s4 : tensor<1024x1024xf32>
  %u0 = stablehlo.divide %nm0, %nv0 : tensor<1024x1024xf32>
  %nw0 = stablehlo.subtract %w0, %u0 : tensor<1024x1024xf32>
  %u1 = stablehlo.divide %nm1, %nv1 : tensor<1024x1024xf32>
  %nw1 = stablehlo.subtract %w1, %u1 : tensor<1024x1024xf32>
  %u2 = stablehlo.divide %nm2, %nv2 : tensor<1024x1024xf32>
  %nw2 = stablehlo.subtract %w2, %u2 : tensor<1024x1024xf32>
  %u3 = stablehlo.divide %nm3, %nv3 : tensor<1024x1024xf32>
  %nw3 = stablehlo.subtract %w3, %u3 : tensor<1024x1024xf32>
  %u4 = stablehlo.divide %nm4, %nv4 : tensor<1024x1024xf32>
  %nw4 = stablehlo.subtract %w4, %u4 : tensor<1024x1024xf32>
  return %nw0, %nw1, %nw2, %nw3, %nw4, %nm0, %nm1, %nm2, %nm3, %nm4, %nv0, %nv1, %nv2, %nv3, %nv4 : tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
}
