// Convolutions and norms that cannot be split: which, and why.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics

func.func @main(%x: tensor<2x4x4xbf16>, %w: tensor<4x4x4xbf16>) -> tensor<2x4x4xbf16> {
  // expected-remark@+1 {{its channels may be the first or the last dimension, and the call does not say which}}
  %0 = stablehlo.custom_call @__cudnn$convForward(%x, %w) : (tensor<2x4x4xbf16>, tensor<4x4x4xbf16>) -> tensor<2x4x4xbf16>
  return %0 : tensor<2x4x4xbf16>
}

// -----

func.func @main(%x: tensor<4x16x16x64xbf16>, %w: tensor<128x3x3x64xbf16>, %b: tensor<4x1x1x128xbf16>) -> tensor<4x16x16x128xbf16> {
  // expected-remark@+1 {{its operand 2 of shape [4, 1, 1, 128] is no bias, and not like its output}}
  %0 = stablehlo.custom_call @__cudnn$convForwardGraph(%x, %w, %b) : (tensor<4x16x16x64xbf16>, tensor<128x3x3x64xbf16>, tensor<4x1x1x128xbf16>) -> tensor<4x16x16x128xbf16>
  return %0 : tensor<4x16x16x128xbf16>
}

// -----

func.func @main(%x: tensor<64x512x1x1xbf16>) -> tensor<64x512x1x1xbf16> {
  // expected-remark@+1 {{@__cudnn$norm is computed whole by every device: it has 1 operands and 1 results, and is of kind LAYER_FWD_INFER}}
  %0 = stablehlo.custom_call @__cudnn$norm(%x) {backend_config = "{\22cudnn_norm_backend_config\22:{}}"} : (tensor<64x512x1x1xbf16>) -> tensor<64x512x1x1xbf16>
  return %0 : tensor<64x512x1x1xbf16>
}
