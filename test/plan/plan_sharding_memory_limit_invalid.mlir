// A limit that no plan meets: the error names the tensors that take the room, and the note what would be enough.
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 memory-limit=4000000 microbatches=1 offload=none" 2>&1 | filecheck %s
// What the note says is enough.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 memory-limit=4864528 microbatches=1" | filecheck %s --check-prefix=ENOUGH

// CHECK: plan_sharding_memory_limit_invalid.mlir:[[LINE:[0-9]+]]:1: error: memory limit 3.81 MiB per device cannot be met on dgx-h100:1
// CHECK-SAME: the smallest plan found needs {{4.5[0-9] MiB, 2.[0-9]+ MiB}} of it arguments
// Tensors are named as in the program: arguments by name, others by the op and line that make them.
// CHECK-SAME: largest: {{.*}}arg3 1.00 MiB
// CHECK-SAME: dot_general tensor<512x512xf32> at {{.*}}plan_sharding_memory_limit_invalid.mlir:{{[0-9]+}}:{{[0-9]+}} 1.00 MiB
// CHECK: :[[LINE]]:1: note: raise the limit to 4864528 bytes, use about 16 devices, or make the batch smaller
// ENOUGH: sdy.mesh @mesh
func.func @main(%w: tensor<512x512xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %m: tensor<512x512xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32},
                %v: tensor<512x512xf32> {rhino.role = "opt_state", tf.aliasing_output = 2 : i32},
                %x: tensor<4096x512xf32> {rhino.role = "batch"}, %y: tensor<4096x512xf32> {rhino.role = "batch"})
    -> (tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>) {
  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
  %e = stablehlo.subtract %p, %y : tensor<4096x512xf32>
  %g = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<4096x512xf32>, tensor<4096x512xf32>) -> tensor<512x512xf32>
  %gg = stablehlo.multiply %g, %g : tensor<512x512xf32>
  %nm = stablehlo.add %m, %g : tensor<512x512xf32>
  %nv = stablehlo.add %v, %gg : tensor<512x512xf32>
  %s = stablehlo.rsqrt %nv : tensor<512x512xf32>
  %d = stablehlo.multiply %nm, %s : tensor<512x512xf32>
  %nw = stablehlo.subtract %w, %d : tensor<512x512xf32>
  return %nw, %nm, %nv : tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>
}
