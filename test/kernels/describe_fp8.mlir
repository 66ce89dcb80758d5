// cuDNN's attention in fp8: what is the largest value over everything, and what is only as small as one.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Largest values of the scores and of the output; the output itself has one element.
// CHECK-LABEL: module @one_element
// CHECK: stablehlo.custom_call @__cudnn$fmhaSoftmaxF8
// CHECK-SAME: maxima = [1, 2], name = "cudnn-attention"
module @one_element {
  func.func @main(%q: tensor<1x1x1x1xf8E4M3FN>, %s: tensor<1x1x1x1xf32>) -> tensor<1x1x1x1xf8E4M3FN> {
    %0:5 = stablehlo.custom_call @__cudnn$fmhaSoftmaxF8(%q, %q, %q, %s, %s, %s, %s, %s, %s) {backend_config = "{\22cudnn_fmha_backend_config\22: {\22mask_type\22: \22NO_MASK\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}"} : (tensor<1x1x1x1xf8E4M3FN>, tensor<1x1x1x1xf8E4M3FN>, tensor<1x1x1x1xf8E4M3FN>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>) -> (tensor<1x1x1x1xf8E4M3FN>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1xf32>, tensor<0xui8>)
    return %0#0 : tensor<1x1x1x1xf8E4M3FN>
  }
}

// -----

// Largest values of the gradients and of the scores' one. Heads that share keys (l) stay together: their gradients would
// be summed in fp8.
// CHECK-LABEL: module @gradients
// CHECK: stablehlo.custom_call @__cudnn$fmhaSoftmaxBackwardF8
// CHECK-SAME: maxima = [3, 4, 5, 6], name = "cudnn-attention-backward"
// CHECK-SAME: <([i, j, kl, m], [i, n, k, m], [i, n, k, o], [i, j, kl, o]
// CHECK-SAME: {i=2, j=16, k=2, l=2,
// CHECK-SAME: need_replication={j, l, m, n, o,
module @gradients {
  func.func @main(%q: tensor<2x16x4x8xf8E4M3FN>, %k: tensor<2x16x2x8xf8E4M3FN>, %m: tensor<2x4x16xf32>, %s: tensor<1x1x1x1xf32>) -> tensor<1x1x1x1xf32> {
    %0:8 = stablehlo.custom_call @__cudnn$fmhaSoftmaxBackwardF8(%q, %k, %k, %q, %q, %m, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) {backend_config = "{\22cudnn_fmha_backend_config\22: {\22mask_type\22: \22CAUSAL\22, \22bmm2_grad_gemm2_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}"} : (tensor<2x16x4x8xf8E4M3FN>, tensor<2x16x2x8xf8E4M3FN>, tensor<2x16x2x8xf8E4M3FN>, tensor<2x16x4x8xf8E4M3FN>, tensor<2x16x4x8xf8E4M3FN>, tensor<2x4x16xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>) -> (tensor<2x4x16x8xf8E4M3FN>, tensor<2x2x16x8xf8E4M3FN>, tensor<2x2x16x8xf8E4M3FN>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xf32>, tensor<0xui8>)
    return %0#3 : tensor<1x1x1x1xf32>
  }
}
