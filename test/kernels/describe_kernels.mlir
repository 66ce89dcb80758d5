// Calls of kernels get the rule by which they can be split, and what they cost.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Two heads of queries share one of keys: factor k counts the heads of keys, l those of queries that share one. Positions
// (j, n) and what is inside a head (m, o) stay whole: the mask is causal, so that half of the products are needed.
// CHECK-LABEL: module @forward
// CHECK: stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: rhino.kernel = {bytes = 12800 : i64, flops = 65536 : i64, name = "cudnn-attention", rate = "attention", type = "bf16"}
// CHECK-SAME: sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, kl, m], [i, n, k, m], [i, n, k, o])->([i, kl, j, o], [i, kl, j], [p]) {i=2, j=16, k=2, l=2, m=16, n=16, o=16, p=0} need_replication={j, m, n, o, p}, custom>
module @forward {
  func.func @main(%q: tensor<2x16x4x16xbf16>, %k: tensor<2x16x2x16xbf16>, %v: tensor<2x16x2x16xbf16>) -> tensor<2x4x16x16xbf16> {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22cudnn_fmha_backend_config\22: {\22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}"} : (tensor<2x16x4x16xbf16>, tensor<2x16x2x16xbf16>, tensor<2x16x2x16xbf16>) -> (tensor<2x4x16x16xbf16>, tensor<2x4x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<2x4x16x16xbf16>
  }
}

// -----

// Without a mask that counts positions, those of queries may be split. Gradients of keys are then sums over parts (sums:
// positions, and the heads that share one), which Shardy's rule cannot say; a bias for all examples is one over the batch.
// CHECK-LABEL: module @backward
// CHECK: stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward
// CHECK-SAME: name = "cudnn-attention-backward", rate = "attention-backward", sums = [0, 1, 3], type = "bf16"}
// CHECK-SAME: <([i, j, kl, m], [i, n, k, m], [i, n, k, o], [i, kl, j], [i, j, kl, o], [p, kl, j, n], [i, j, kl, o])->([i, kl, j, m], [i, k, n, m], [i, k, n, o], [p, kl, j, n], [q])
// CHECK-SAME: need_replication={m, n, o, q}, custom>
module @backward {
  func.func @main(%q: tensor<2x16x4x16xbf16>, %k: tensor<2x16x2x16xbf16>, %v: tensor<2x16x2x16xbf16>, %s: tensor<2x4x16xf32>, %o: tensor<2x16x4x16xbf16>, %b: tensor<1x4x16x16xbf16>) -> tensor<1x4x16x16xbf16> {
    %0:5 = stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(%q, %k, %v, %s, %o, %b, %o) {api_version = 2 : i32, backend_config = "{\22cudnn_fmha_backend_config\22: {\22mask_type\22: \22NO_MASK\22, \22bmm2_grad_gemm2_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}"} : (tensor<2x16x4x16xbf16>, tensor<2x16x2x16xbf16>, tensor<2x16x2x16xbf16>, tensor<2x4x16xf32>, tensor<2x16x4x16xbf16>, tensor<1x4x16x16xbf16>, tensor<2x16x4x16xbf16>) -> (tensor<2x4x16x16xbf16>, tensor<2x2x16x16xbf16>, tensor<2x2x16x16xbf16>, tensor<1x4x16x16xbf16>, tensor<0xui8>)
    return %0#3 : tensor<1x4x16x16xbf16>
  }
}

// -----

// A call that the table does not know keeps the rule that it brings; what is in no result (j) must not be split, since
// nothing would put the parts together.
// CHECK-LABEL: module @own_rule
// CHECK: stablehlo.custom_call @elsewhere
// CHECK-SAME: rhino.kernel = {bytes = 160 : i64, flops = 0 : i64, name = "elsewhere", rate = "vector", type = "f32"}
// CHECK-SAME: sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=8, j=4} need_replication={j}, custom>
module @own_rule {
  func.func @main(%x: tensor<8x4xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @elsewhere(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=8, j=4}, custom>} : (tensor<8x4xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// What XLA places by itself is none.
// CHECK-LABEL: module @left_to_xla
// CHECK-NOT: rhino.kernel
// CHECK: return
module @left_to_xla {
  func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @annotate_device_placement(%x) {has_side_effect = true} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
