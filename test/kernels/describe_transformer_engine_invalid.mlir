// Transformer Engine's calls that cannot be split: which, and why.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics

func.func @main(%x: tensor<128x256xbf16>, %s: tensor<1xf32>) -> tensor<128x256xf8E4M3FN> {
  // expected-remark@+1 {{its scales are of blocks, padded and in tiles; where rhino.parallelize traces the step, Transformer Engine splits it}}
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {api_version = 4 : i32, backend_config = {flatten_axis = -1 : i64, is_dbias = false, scaling_mode = 2 : i64}} : (tensor<128x256xbf16>, tensor<1xf32>) -> (tensor<128x256xf8E4M3FN>, tensor<1xf8E4M3FN>, tensor<128x8xf8E8M0FNU>, tensor<1xf8E8M0FNU>, tensor<1xf32>, tensor<1xbf16>, tensor<1xf32>)
  return %0#0 : tensor<128x256xf8E4M3FN>
}

// -----

func.func @main(%q: tensor<4x128x4x64xbf16>) -> tensor<4x128x4x64xbf16> {
  // expected-remark@+1 {{packed sequences (thd): the offsets of segments count elements of the whole batch}}
  %0 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %q, %q) {api_version = 4 : i32, backend_config = {bias_type = 0 : i64, mask_type = 1 : i64, qkv_layout = 14 : i64}} : (tensor<4x128x4x64xbf16>, tensor<4x128x4x64xbf16>, tensor<4x128x4x64xbf16>) -> tensor<4x128x4x64xbf16>
  return %0 : tensor<4x128x4x64xbf16>
}

// -----

func.func @main(%x: tensor<64xbf16>, %g: tensor<4xi32>) -> tensor<64xbf16> {
  // expected-remark@+1 {{which rows belong to a group is in its operands; where rhino.parallelize traces the step, Transformer Engine splits it}}
  %0 = stablehlo.custom_call @te_grouped_gemm_ffi(%x, %g) {api_version = 4 : i32, backend_config = {}} : (tensor<64xbf16>, tensor<4xi32>) -> tensor<64xbf16>
  return %0 : tensor<64xbf16>
}

// -----

func.func @main(%x: tensor<64x512xbf16>, %g: tensor<512xbf16>) -> tensor<64x512xbf16> {
  // expected-remark@+1 {{@te_norm_forward_ffi is computed whole by every device: it has 2 operands and 1 results, as no version of it that is known}}
  %0 = stablehlo.custom_call @te_norm_forward_ffi(%x, %g) {api_version = 4 : i32, backend_config = {}} : (tensor<64x512xbf16>, tensor<512xbf16>) -> tensor<64x512xbf16>
  return %0 : tensor<64x512xbf16>
}
