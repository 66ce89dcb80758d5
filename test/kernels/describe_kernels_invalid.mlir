// Calls that cannot be split: which, and why.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file --verify-diagnostics

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-remark@+1 {{@nobody_knows is computed whole by every device: nobody said how it can be split; rhino.kernels.register('nobody_knows', rule=..) does}}
  %0 = stablehlo.custom_call @nobody_knows(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+2 {{only the process that exported this file can partition this call, by a callback of its own}}
  // expected-note@+1 {{export the step for one device, which writes out what the call stands for, or plan it in Python with rhino.parallelize}}
  %0 = stablehlo.custom_call @CustomSPMDPartitioning(%x) {api_version = 2 : i32, backend_config = "140014"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%q: tensor<2x16x4x16xbf16>, %l: tensor<2x3xi32>) -> tensor<2x4x16x16xbf16> {
  // expected-remark@+1 {{@__cudnn$fmhaSoftmax is computed whole by every device: packed sequences: the offsets of segments count elements of the whole batch}}
  %0:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %q, %q, %l, %l) {api_version = 2 : i32, backend_config = "{\22cudnn_fmha_backend_config\22: {\22mask_type\22: \22PADDING\22, \22max_seg_per_batch\22: 3, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}"} : (tensor<2x16x4x16xbf16>, tensor<2x16x4x16xbf16>, tensor<2x16x4x16xbf16>, tensor<2x3xi32>, tensor<2x3xi32>) -> (tensor<2x4x16x16xbf16>, tensor<0xui8>)
  return %0#0 : tensor<2x4x16x16xbf16>
}

// -----

func.func @main(%q: tensor<2x16x4x16xbf16>) -> tensor<2x4x16x16xbf16> {
  // expected-remark@+1 {{its configuration has no cudnn_fmha_backend_config}}
  %0:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %q, %q) {api_version = 2 : i32, backend_config = ""} : (tensor<2x16x4x16xbf16>, tensor<2x16x4x16xbf16>, tensor<2x16x4x16xbf16>) -> (tensor<2x4x16x16xbf16>, tensor<0xui8>)
  return %0#0 : tensor<2x4x16x16xbf16>
}
