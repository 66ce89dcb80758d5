// Linear algebra that is computed whole, and why.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics

func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-remark@+1 {{cholesky is computed whole by every device: the algorithm works along the whole matrix}}
  %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {mhlo.backend_config = {uplo = 76 : ui8}} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i32>)
  return %0#0 : tensor<8x8xf32>
}

// -----

func.func @main(%x: tensor<64xf32>) -> tensor<3xf32> {
  // expected-remark@+1 {{top-k is computed whole by every device: the largest are chosen among all elements of this dimension}}
  %values, %indices = chlo.top_k(%x, k = 3) : tensor<64xf32> -> (tensor<3xf32>, tensor<3xi32>)
  return %values : tensor<3xf32>
}

// -----

func.func @main(%x: tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>> {
  // expected-remark@+1 {{fft is computed whole by every device: each element of the transform is a sum over all of them}}
  %0 = stablehlo.fft %x, type = FFT, length = [64] : (tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>>
  return %0 : tensor<64xcomplex<f32>>
}

// -----

func.func @main(%a: tensor<2x8x8xf32>, %b: tensor<3x8x4xf32>) -> tensor<3x8x4xf32> {
  // expected-remark@+1 {{@lapack_strsm_ffi is computed whole by every device: its operand 1 of shape [3, 8, 4] has not the batch [2] in front}}
  %0 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {mhlo.backend_config = {side = 76 : ui8}} : (tensor<2x8x8xf32>, tensor<3x8x4xf32>) -> tensor<3x8x4xf32>
  return %0 : tensor<3x8x4xf32>
}

// -----

func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-remark@+1 {{its configuration does not say on which side the matrix stands}}
  %0 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {mhlo.backend_config = {}} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<4x64xf32>, %s: tensor<f32>) -> tensor<4x2xf32> {
  // expected-remark@+1 {{@ApproxTopK is computed whole by every device: its configuration has no reduction_dim}}
  %0 = stablehlo.custom_call @ApproxTopK(%x, %s) {mhlo.backend_config = {top_k = 2 : i64}} : (tensor<4x64xf32>, tensor<f32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}
