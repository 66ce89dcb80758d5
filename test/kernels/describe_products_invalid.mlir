// Products that cannot be split: which, and why.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics

func.func @main(%a: tensor<8x64xbf16>, %w: tensor<64x32xbf16>) -> tensor<8x32xbf16> {
  // expected-remark@+1 {{@__cublas$lt$matmul is computed whole by every device: its epilogue SWISH is not known}}
  %0 = stablehlo.custom_call @__cublas$lt$matmul(%a, %w) {backend_config = "{\22gemm_backend_config\22:{\22epilogue\22:\22SWISH\22,\22dot_dimension_numbers\22:{}}}"} : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> tensor<8x32xbf16>
  return %0 : tensor<8x32xbf16>
}

// -----

func.func @main(%a: tensor<8x64xbf16>, %w: tensor<64x32xbf16>) -> tensor<8x32xbf16> {
  // expected-remark@+1 {{its configuration has no gemm_backend_config}}
  %0 = stablehlo.custom_call @__cublas$gemm(%a, %w) : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> tensor<8x32xbf16>
  return %0 : tensor<8x32xbf16>
}

// -----

func.func @main(%a: tensor<8x72xf8E4M3FN>, %s: tensor<8x3xf8E8M0FNU>) -> tensor<8x8xf32> {
  // expected-remark@+1 {{24 of its elements have one scale, not 16 or 32: scales are padded}}
  %0 = stablehlo.custom_call @__op$block_scaled_dot(%a, %a, %s, %s) : (tensor<8x72xf8E4M3FN>, tensor<8x72xf8E4M3FN>, tensor<8x3xf8E8M0FNU>, tensor<8x3xf8E8M0FNU>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// Nobody sees what becomes of a tuple that is handed on whole.
func.func @main(%a: tensor<8x64xbf16>, %w: tensor<64x32xbf16>) -> tuple<tensor<8x32xbf16>, tensor<64xi8>> {
  // expected-remark@+1 {{@__cublas$gemm is computed whole by every device}}
  %0 = stablehlo.custom_call @__cublas$gemm(%a, %w) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]}}}"} : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> tuple<tensor<8x32xbf16>, tensor<64xi8>>
  return %0 : tuple<tensor<8x32xbf16>, tensor<64xi8>>
}
