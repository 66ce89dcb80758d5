// Compiled kernels in files are not split; the summary has their own names, and what they say they cost.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics | filecheck %s

// Pallas for TPUs: the estimate is 1234 operations and 5678 bytes.
// CHECK-LABEL: func.func @main(%arg0: tensor<32x128xf32>)
// CHECK: stablehlo.custom_call @tpu_custom_call
// CHECK-SAME: rhino.kernel = {bytes = 5678 : i64, flops = 1234 : i64, name = "doubled", rate = "tensor", replicated = "it is compiled for these shapes; plan the step in Python with rhino.parallelize, which makes its kernels anew from their grids", type = "f32"}
func.func @main(%x: tensor<32x128xf32>) -> tensor<32x128xf32> {
  // expected-remark@+1 {{@tpu_custom_call is computed whole by every device: it is compiled for these shapes; plan the step in Python with rhino.parallelize, which makes its kernels anew from their grids}}
  %0 = stablehlo.custom_call @tpu_custom_call(%x) {backend_config = "{\22custom_call_config\22: {\22body\22: \22TUzv\22, \22cost_estimate\22: {\22bytes_accessed\22:5678, \22flops\22:1234, \22transcendentals\22:0}, \22serialization_format\22: 1}}", kernel_name = "doubled"} : (tensor<32x128xf32>) -> tensor<32x128xf32>
  return %0 : tensor<32x128xf32>
}

// -----

// Triton through Pallas: no estimate, so that it takes the time of its operands and results. It can be registered by name.
// CHECK-LABEL: func.func @main(%arg0: tensor<32x256xf32>)
// CHECK: stablehlo.custom_call @__gpu$xla.gpu.triton
// CHECK-SAME: rhino.kernel = {bytes = 65536 : i64, flops = 0 : i64, name = "doubled", rate = "vector"
func.func @main(%x: tensor<32x256xf32>) -> tensor<32x256xf32> {
  // expected-remark@+1 {{or, if the kernel does not depend on its sizes, rhino.kernels.register('doubled', rule=.., resize=..)}}
  %0 = stablehlo.custom_call @__gpu$xla.gpu.triton(%x) {backend_config = "", mhlo.backend_config = {debug = false, grid_x = 4 : i32, grid_y = 1 : i32, grid_z = 1 : i32, ir = "ML\EFR\0D", name = "doubled", num_stages = 3 : i32, num_warps = 4 : i32}} : (tensor<32x256xf32>) -> tensor<32x256xf32>
  return %0 : tensor<32x256xf32>
}

// -----

// jax-triton's calls are compressed bytes, Mosaic's for GPUs compiled code. In a loop as anywhere else.
// CHECK-LABEL: func.func @main(%arg0: tensor<32x512xf32>)
// CHECK: stablehlo.while
// CHECK: stablehlo.custom_call @triton_kernel_call
// CHECK-SAME: name = "triton_kernel_call"
// CHECK: stablehlo.custom_call @mosaic_gpu_v2
// CHECK-SAME: name = "mosaic_gpu_v2"
func.func @main(%x: tensor<32x512xf32>) -> tensor<32x512xf32> {
  %n = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %n, %a = %x) : tensor<i32>, tensor<32x512xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    // expected-remark@+1 {{@triton_kernel_call is computed whole by every device: it is compiled for these shapes}}
    %1 = stablehlo.custom_call @triton_kernel_call(%a) {api_version = 2 : i32, backend_config = "x\9C\E3\92"} : (tensor<32x512xf32>) -> tensor<32x512xf32>
    // expected-remark@+1 {{@mosaic_gpu_v2 is computed whole by every device: it is compiled for these shapes}}
    %2 = stablehlo.custom_call @mosaic_gpu_v2(%1) {api_version = 4 : i32, backend_config = {kernel_hash = ">=8\CB\EF", module = "ML\EFR\01", use_custom_barrier = false}} : (tensor<32x512xf32>) -> tensor<32x512xf32>
    stablehlo.return %i, %2 : tensor<i32>, tensor<32x512xf32>
  }
  return %0#1 : tensor<32x512xf32>
}
