// Transformer Engine's calls, as they stand in a file exported on one device.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Rows (i) of a norm; with fp8 its largest value is that of all rows, and the scale is the same everywhere (maxima).
// CHECK-LABEL: module @norm
// CHECK: stablehlo.custom_call @te_norm_forward_ffi
// CHECK-SAME: rhino.kernel = {bytes = {{[0-9]+}} : i64, flops = 0 : i64, maxima = [2, 3, 4], name = "te-norm", rate = "vector", type = "bf16"}
// CHECK-SAME: <([i, j], [k], [j], [j])->([i, j], [l], [m], [n], [o], [i], [i], [p])
// CHECK-SAME: need_replication={j, k, l, m, n, o, p}, custom>
// CHECK: stablehlo.custom_call @te_norm_backward_ffi
// CHECK-SAME: name = "te-norm-backward", rate = "vector", sums = [0], type = "bf16"}
// CHECK-SAME: <([i, j], [i, j], [i], [i], [j])->([i, j], [j], [j], [k])
module @norm {
  func.func @main(%x: tensor<64x512xbf16>, %s: tensor<1xf32>, %g: tensor<512xbf16>) -> (tensor<64x512xf8E4M3FN>, tensor<1xf32>, tensor<512xbf16>) {
    %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%x, %s, %g, %g) {api_version = 4 : i32, backend_config = {epsilon = 1.0e-5 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 1 : i64, sm_margin = 0 : i64, zero_centered_gamma = false}} : (tensor<64x512xbf16>, tensor<1xf32>, tensor<512xbf16>, tensor<512xbf16>) -> (tensor<64x512xf8E4M3FN>, tensor<1xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096xui8>)
    %1:4 = stablehlo.custom_call @te_norm_backward_ffi(%x, %x, %0#5, %0#6, %g) {api_version = 4 : i32, backend_config = {norm_type = 0 : i64, sm_margin = 0 : i64, zero_centered_gamma = false}} : (tensor<64x512xbf16>, tensor<64x512xbf16>, tensor<64xf32>, tensor<64xf32>, tensor<512xbf16>) -> (tensor<64x512xbf16>, tensor<512xbf16>, tensor<512xbf16>, tensor<4096xui8>)
    return %0#0, %0#4, %1#1 : tensor<64x512xf8E4M3FN>, tensor<1xf32>, tensor<512xbf16>
  }
}

// -----

// A gated activation: rows and columns, but not the two kinds (k). Its gradient's bias is a sum over rows (i, j), and the
// second copy is transposed.
// CHECK-LABEL: module @activation
// CHECK: stablehlo.custom_call @te_act_lu_ffi
// CHECK-SAME: <([i, j, k, l], [m])->([i, j, l], [n], [o], [p], [q])
// CHECK: stablehlo.custom_call @te_dact_dbias_quantize_ffi
// CHECK-SAME: sums = [0, 1]
// CHECK-SAME: <([i, j, k], [i, j, l, k], [m])->([i, j, l, k], [l, k, i, j], [n], [o], [p], [l, k], [q])
module @activation {
  func.func @main(%x: tensor<4x16x2x64xbf16>, %g: tensor<4x16x64xbf16>, %s: tensor<1xf32>) -> (tensor<4x16x64xbf16>, tensor<2x64xbf16>) {
    %0:5 = stablehlo.custom_call @te_act_lu_ffi(%x, %s) {api_version = 4 : i32, backend_config = {act_enum = 3 : i64, is_2x = false, scaling_mode = 0 : i64}} : (tensor<4x16x2x64xbf16>, tensor<1xf32>) -> (tensor<4x16x64xbf16>, tensor<1xbf16>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
    %1:7 = stablehlo.custom_call @te_dact_dbias_quantize_ffi(%g, %x, %s) {api_version = 4 : i32, backend_config = {act_enum = 3 : i64, is_2x = true, is_dbias = true, scaling_mode = 1 : i64}} : (tensor<4x16x64xbf16>, tensor<4x16x2x64xbf16>, tensor<1xf32>) -> (tensor<4x16x2x64xf8E5M2>, tensor<2x64x4x16xf8E5M2>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<2x64xbf16>, tensor<512xui8>)
    return %0#0, %1#5 : tensor<4x16x64xbf16>, tensor<2x64xbf16>
  }
}

// -----

// A product, rhs transposed: what is contracted is the last dimension of both, and a sum.
// CHECK-LABEL: module @product
// CHECK: stablehlo.custom_call @te_gemm_v2_ffi
// CHECK-SAME: flops = 4194304 : i64, name = "te-product", rate = "tensor", type = "f8E4M3FN"}
// CHECK-SAME: <([i, j, k], [l], [m, k], [n], [o], [p], [q])->([i, j, m], [r])
// CHECK-SAME: reduction={k}
module @product {
  func.func @main(%a: tensor<4x16x512xf8E4M3FN>, %b: tensor<64x512xf8E4M3FN>, %s: tensor<1xf32>, %n: tensor<0xbf16>) -> tensor<4x16x64xbf16> {
    %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%a, %s, %b, %s, %n, %s, %s) {api_version = 4 : i32, backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = true, scaling_mode = 1 : i64, use_split_accumulator = false}}} : (tensor<4x16x512xf8E4M3FN>, tensor<1xf32>, tensor<64x512xf8E4M3FN>, tensor<1xf32>, tensor<0xbf16>, tensor<1xf32>, tensor<1xf32>) -> (tensor<4x16x64xbf16>, tensor<256xui8>)
    return %0#0 : tensor<4x16x64xbf16>
  }
}

// -----

// Softmax with a mask for all heads: heads in parts of four (l), queries in blocks of eight rows (n), keys (o) never.
// CHECK-LABEL: module @softmax
// CHECK: stablehlo.custom_call @te_scaled_masked_softmax_forward_ffi
// CHECK-SAME: <([i, jk, lm, n], [i, o, lm, n])->([i, jk, lm, n]) {i=4, j=4, k=4, l=16, m=8, n=128, o=1} need_replication={k, m, n, o}, custom>
module @softmax {
  func.func @main(%x: tensor<4x16x128x128xbf16>, %m: tensor<4x1x128x128xui8>) -> tensor<4x16x128x128xbf16> {
    %0 = stablehlo.custom_call @te_scaled_masked_softmax_forward_ffi(%x, %m) {api_version = 4 : i32, backend_config = {scale_factor = 1.0 : f64}} : (tensor<4x16x128x128xbf16>, tensor<4x1x128x128xui8>) -> tensor<4x16x128x128xbf16>
    return %0 : tensor<4x16x128x128xbf16>
  }
}

// -----

// Attention, causal, two heads of queries to one of keys (k, l): half the arithmetic; batch and heads are split.
// CHECK-LABEL: module @attention
// CHECK: stablehlo.custom_call @te_fused_attn_forward_ffi
// CHECK-SAME: flops = 33554432 : i64, name = "te-attention", rate = "attention", type = "bf16"}
// CHECK-SAME: <([i, j, kl, m], [i, n, k, m], [i, n, k, o], [p], [q], [r, s], [t], [u], [v], [w], [x], [y], [z], [z_1])->([i, j, kl, o], [i, kl, j, z_2], [z_3], [z_4, z_5], [z_6])
module @attention {
  func.func @main(%q: tensor<4x128x4x64xbf16>, %k: tensor<4x128x2x64xbf16>, %n: tensor<0xbf16>, %o: tensor<0xf32>, %s: tensor<1x2xui32>, %l: tensor<5xi32>, %e: tensor<0xi32>) -> tensor<4x128x4x64xbf16> {
    %0:5 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %k, %k, %n, %o, %s, %l, %l, %e, %e, %e, %e, %e, %e) {api_version = 4 : i32, backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, input_batch = 4 : i64, mask_type = 2 : i64, num_gqa_groups = 2 : i64, qkv_layout = 9 : i64, softmax_type = 0 : i64, window_size_left = -1 : i64}} : (tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<1x2xui32>, tensor<5xi32>, tensor<5xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x4x128x1xf32>, tensor<0xf32>, tensor<1x4xui32>, tensor<64xui8>)
    return %0#0 : tensor<4x128x4x64xbf16>
  }
}

// -----

// Its gradients: five products instead of two. Those of keys and values are sums over the queries' heads that share them (l).
// CHECK-LABEL: module @attention_backward
// CHECK: stablehlo.custom_call @te_fused_attn_backward_ffi
// CHECK-SAME: flops = 83886080 : i64, name = "te-attention-backward", rate = "attention-backward", sums = [3], type = "bf16"}
// CHECK-SAME: <([i, j, kl, m], [i, n, k, m], [i, n, k, o], [p], [q], [i, kl, j, r], [s, t], [i, j, kl, o], [i, j, kl, o], [u], [v], [w], [x], [y], [z], [z_1], [z_2])->([i, j, kl, m], [i, n, k, m], [i, n, k, o], [p], [q], [z_3])
// CHECK-SAME: {i=4, j=128, k=2, l=2, m=64, n=128, o=64,
// CHECK-SAME: need_replication={j, m, n, o, p, q, r, s, t, u, v, w, x, y, z, z_1, z_2, z_3}, custom>
module @attention_backward {
  func.func @main(%q: tensor<4x128x4x64xbf16>, %k: tensor<4x128x2x64xbf16>, %n: tensor<0xbf16>, %o: tensor<0xf32>, %s: tensor<4x4x128x1xf32>, %r: tensor<1x4xui32>, %l: tensor<5xi32>, %e: tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>) {
    %0:6 = stablehlo.custom_call @te_fused_attn_backward_ffi(%q, %k, %k, %n, %o, %s, %r, %q, %q, %l, %l, %e, %e, %e, %e, %e, %e) {api_version = 4 : i32, backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, deterministic = false, input_batch = 4 : i64, mask_type = 2 : i64, num_gqa_groups = 2 : i64, qkv_layout = 9 : i64, softmax_type = 0 : i64, window_size_left = -1 : i64}} : (tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<4x4x128x1xf32>, tensor<1x4xui32>, tensor<4x128x4x64xbf16>, tensor<4x128x4x64xbf16>, tensor<5xi32>, tensor<5xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<64xui8>)
    return %0#0, %0#1, %0#2 : tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>
  }
}
