// Transformer Engine's calls on a device's part: local shapes, and the sizes in their attributes.
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// Batch over x, heads over y: the attributes have a device's numbers of examples, of heads and of those of keys.
// CHECK-LABEL: module @attention
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @te_fused_attn_forward_ffi
// CHECK-SAME: attn_heads = 2 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, input_batch = 2 : i64, mask_type = 2 : i64, num_gqa_groups = 1 : i64
// CHECK-SAME: (tensor<2x128x2x64xbf16>, tensor<2x128x1x64xbf16>, tensor<2x128x1x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<1x2xui32>, tensor<5xi32>
// CHECK-SAME: -> (tensor<2x128x2x64xbf16>, tensor<2x2x128x1xf32>, tensor<0xf32>, tensor<1x4xui32>, tensor<64xui8>)
module @attention {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%q: tensor<4x128x4x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}, {}]>}, %k: tensor<4x128x2x64xbf16>, %n: tensor<0xbf16>, %o: tensor<0xf32>, %s: tensor<1x2xui32>, %l: tensor<5xi32>, %e: tensor<0xi32>) -> tensor<4x128x4x64xbf16> {
    %0:5 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %k, %k, %n, %o, %s, %l, %l, %e, %e, %e, %e, %e, %e) {api_version = 4 : i32, backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, input_batch = 4 : i64, mask_type = 2 : i64, num_gqa_groups = 2 : i64, qkv_layout = 9 : i64, softmax_type = 0 : i64, window_size_left = -1 : i64}} : (tensor<4x128x4x64xbf16>, tensor<4x128x2x64xbf16>, tensor<4x128x2x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<1x2xui32>, tensor<5xi32>, tensor<5xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x4x128x1xf32>, tensor<0xf32>, tensor<1x4xui32>, tensor<64xui8>)
    return %0#0 : tensor<4x128x4x64xbf16>
  }
}

// -----

// A cast with a bias' gradient, rows over x: the largest value is found among devices and not added up, the gradient is
// added up. Of the scale, which nobody reads here, nothing is made.
// CHECK-LABEL: module @cast
// CHECK: %[[M:.*]]:7 = sdy.manual_computation
// CHECK: stablehlo.custom_call @te_dbias_quantize_ffi
// CHECK-SAME: -> (tensor<32x512xf8E4M3FN>, tensor<512x32xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<512xbf16>, tensor<64xui8>)
// CHECK: "stablehlo.all_reduce"
// CHECK: stablehlo.maximum
// CHECK: sdy.return
// CHECK: %[[S:.*]] = stablehlo.reduce(%[[M]]#5 init: %{{.*}}) applies stablehlo.add
// CHECK-NOT: stablehlo.reduce
// CHECK: return %[[M]]#1, %[[M]]#4, %[[S]]
module @cast {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<64x512xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %s: tensor<1xf32>) -> (tensor<512x64xf8E4M3FN>, tensor<1xf32>, tensor<512xbf16>) {
    %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {api_version = 4 : i32, backend_config = {flatten_axis = -1 : i64, is_dbias = true, q_layout = 2 : i64, scaling_mode = 1 : i64}} : (tensor<64x512xbf16>, tensor<1xf32>) -> (tensor<64x512xf8E4M3FN>, tensor<512x64xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<512xbf16>, tensor<64xui8>)
    return %0#1, %0#4, %0#5 : tensor<512x64xf8E4M3FN>, tensor<1xf32>, tensor<512xbf16>
  }
}

// -----

// A product whose contraction is split is a sum.
// CHECK-LABEL: module @product
// CHECK: stablehlo.custom_call @te_gemm_v2_ffi
// CHECK-SAME: flops = 2097152 : i64
// CHECK-SAME: -> (tensor<64x64xbf16>, tensor<256xui8>)
// CHECK: stablehlo.reduce
module @product {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<64x512xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %b: tensor<512x64xbf16>, %s: tensor<0xf32>, %n: tensor<0xbf16>, %o: tensor<1xf32>) -> tensor<64x64xbf16> {
    %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%a, %s, %b, %s, %n, %o, %o) {api_version = 4 : i32, backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 1 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<64x512xbf16>, tensor<0xf32>, tensor<512x64xbf16>, tensor<0xf32>, tensor<0xbf16>, tensor<1xf32>, tensor<1xf32>) -> (tensor<64x64xbf16>, tensor<256xui8>)
    return %0#0 : tensor<64x64xbf16>
  }
}

// -----

// One head of keys for all of queries, which are split over y: the gradients of keys and values are sums over y.
// CHECK-LABEL: module @attention_backward
// CHECK: %[[M:.*]]:6 = sdy.manual_computation
// CHECK: stablehlo.custom_call @te_fused_attn_backward_ffi
// CHECK-SAME: attn_heads = 2 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, deterministic = false, input_batch = 2 : i64, mask_type = 2 : i64, num_gqa_groups = 1 : i64
// CHECK-SAME: flops = 20971520 : i64
// CHECK-SAME: (tensor<2x128x2x64xbf16>, tensor<2x128x1x64xbf16>, tensor<2x128x1x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<2x2x128x1xf32>, tensor<1x4xui32>, tensor<2x128x2x64xbf16>, tensor<2x128x2x64xbf16>, tensor<5xi32>
// CHECK-SAME: -> (tensor<2x128x2x64xbf16>, tensor<2x128x1x64xbf16>, tensor<2x128x1x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<64xui8>)
// CHECK: %[[K:.*]] = stablehlo.reduce(%[[M]]#1 init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK: %[[V:.*]] = stablehlo.reduce(%[[M]]#2 init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK: return %[[M]]#0, %[[K]], %[[V]]
module @attention_backward {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%q: tensor<4x128x4x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}, {}]>}, %k: tensor<4x128x1x64xbf16>, %n: tensor<0xbf16>, %o: tensor<0xf32>, %s: tensor<4x4x128x1xf32>, %r: tensor<1x4xui32>, %l: tensor<5xi32>, %e: tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x128x1x64xbf16>, tensor<4x128x1x64xbf16>) {
    %0:6 = stablehlo.custom_call @te_fused_attn_backward_ffi(%q, %k, %k, %n, %o, %s, %r, %q, %q, %l, %l, %e, %e, %e, %e, %e, %e) {api_version = 4 : i32, backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, deterministic = false, input_batch = 4 : i64, mask_type = 2 : i64, num_gqa_groups = 1 : i64, qkv_layout = 9 : i64, softmax_type = 0 : i64, window_size_left = -1 : i64}} : (tensor<4x128x4x64xbf16>, tensor<4x128x1x64xbf16>, tensor<4x128x1x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<4x4x128x1xf32>, tensor<1x4xui32>, tensor<4x128x4x64xbf16>, tensor<4x128x4x64xbf16>, tensor<5xi32>, tensor<5xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<4x128x4x64xbf16>, tensor<4x128x1x64xbf16>, tensor<4x128x1x64xbf16>, tensor<0xbf16>, tensor<0xf32>, tensor<64xui8>)
    return %0#0, %0#1, %0#2 : tensor<4x128x4x64xbf16>, tensor<4x128x1x64xbf16>, tensor<4x128x1x64xbf16>
  }
}
