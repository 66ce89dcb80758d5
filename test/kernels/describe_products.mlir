// Products of cuBLAS and block-scaled ones: rows, columns and batch are split, what is contracted as a sum where it is one.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Written in a tuple, as XLA's HLO has it: the call makes its elements, of which one is memory to work in (l).
// CHECK-LABEL: module @gemm
// CHECK: %[[P:.*]]:2 = stablehlo.custom_call @__cublas$gemm
// CHECK-SAME: rhino.kernel = {bytes = 5632 : i64, flops = 32768 : i64, name = "cublas-product", rate = "tensor", type = "bf16"}
// CHECK-SAME: sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j, k])->([i, k], [l]) {i=8, j=64, k=32, l=64} reduction={j} need_replication={l}, custom>
// CHECK: return %[[P]]#0
module @gemm {
  func.func @main(%a: tensor<8x64xbf16>, %w: tensor<64x32xbf16>) -> tensor<8x32xbf16> {
    %0 = stablehlo.custom_call @__cublas$gemm(%a, %w) {backend_config = "{\22operation_queue_id\22:\220\22,\22gemm_backend_config\22:{\22alpha_real\22:1,\22beta\22:0,\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]},\22epilogue\22:\22DEFAULT\22}}", xla_shape = "(bf16[8,32]{1,0}, s8[64]{0})"} : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> tuple<tensor<8x32xbf16>, tensor<64xi8>>
    %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<8x32xbf16>, tensor<64xi8>>) -> tensor<8x32xbf16>
    return %1 : tensor<8x32xbf16>
  }
}

// -----

// A batch, and gelu behind the product: it is of the whole sum, so that what is contracted (k) stays together. The second
// result is what gelu was applied to.
// CHECK-LABEL: module @gelu
// CHECK: stablehlo.custom_call @__cublas$lt$matmul
// CHECK-SAME: flops = 65536 : i64
// CHECK-SAME: <([i, j, k], [i, k, l], [l])->([i, j, l], [i, j, l], [m]) {i=2, j=8, k=64, l=32, m=0} need_replication={k, m}, custom>
module @gelu {
  func.func @main(%a: tensor<2x8x64xbf16>, %w: tensor<2x64x32xbf16>, %b: tensor<32xbf16>) -> (tensor<2x8x32xbf16>, tensor<2x8x32xbf16>) {
    %0:3 = stablehlo.custom_call @__cublas$lt$matmul(%a, %w, %b) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\222\22],\22rhs_contracting_dimensions\22:[\221\22],\22lhs_batch_dimensions\22:[\220\22],\22rhs_batch_dimensions\22:[\220\22]},\22epilogue\22:\22BIAS_GELU_AUX\22}}"} : (tensor<2x8x64xbf16>, tensor<2x64x32xbf16>, tensor<32xbf16>) -> (tensor<2x8x32xbf16>, tensor<2x8x32xbf16>, tensor<0xi8>)
    return %0#0, %0#1 : tensor<2x8x32xbf16>, tensor<2x8x32xbf16>
  }
}

// -----

// Fp8, at its own rate: scales are one number each, and the largest value (maxima) is that of all parts.
// CHECK-LABEL: module @fp8
// CHECK: stablehlo.custom_call @__cublas$lt$matmul$f8
// CHECK-SAME: maxima = [1], name = "cublas-product", rate = "tensor", type = "f8"}
// CHECK-SAME: <([i, j], [k, j], [], [], [])->([i, k], [], [l]) {i=8, j=64, k=32, l=0} need_replication={j, l}, custom>
module @fp8 {
  func.func @main(%a: tensor<8x64xf8E4M3FN>, %w: tensor<32x64xf8E4M3FN>, %s: tensor<f32>) -> (tensor<8x32xf8E4M3FN>, tensor<f32>) {
    %0:3 = stablehlo.custom_call @__cublas$lt$matmul$f8(%a, %w, %s, %s, %s) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\221\22]},\22damax_output\22:true}}"} : (tensor<8x64xf8E4M3FN>, tensor<32x64xf8E4M3FN>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<8x32xf8E4M3FN>, tensor<f32>, tensor<0xi8>)
    return %0#0, %0#1 : tensor<8x32xf8E4M3FN>, tensor<f32>
  }
}

// -----

// What jax.nn.scaled_matmul lowers to: 16 blocks (k) of 32 elements (l) that share a scale; parts of a sum are whole blocks.
// CHECK-LABEL: module @block_scaled
// CHECK: stablehlo.custom_call @__op$block_scaled_dot
// CHECK-SAME: flops = 67108864 : i64, name = "block-scaled-product", rate = "tensor", type = "f8E4M3FN"}
// CHECK-SAME: <([i, j, kl], [i, m, kl], [i, j, k], [i, m, k])->([i, j, m]) {i=2, j=256, k=16, l=32, m=128} reduction={k} need_replication={l}, custom>
module @block_scaled {
  func.func @main(%a: tensor<2x256x512xf8E4M3FN>, %b: tensor<2x128x512xf8E4M3FN>, %s: tensor<2x256x16xf8E8M0FNU>, %t: tensor<2x128x16xf8E8M0FNU>) -> tensor<2x256x128xf32> {
    %0 = stablehlo.custom_call @__op$block_scaled_dot(%a, %b, %s, %t) {api_version = 2 : i32, backend_config = "{\22scaled_dot_backend_config\22: {\22lhs_batch_dimensions\22: [0], \22rhs_batch_dimensions\22: [0], \22dequantize_type\22: \22F32\22}}"} : (tensor<2x256x512xf8E4M3FN>, tensor<2x128x512xf8E4M3FN>, tensor<2x256x16xf8E8M0FNU>, tensor<2x128x16xf8E8M0FNU>) -> tensor<2x256x128xf32>
    return %0 : tensor<2x256x128xf32>
  }
}

// -----

// cuDNN's form of it: scales stand in tiles of 128 rows, which stay together (k, n), and of 4 blocks of what is contracted.
// CHECK-LABEL: module @tiles
// CHECK: stablehlo.custom_call @__cudnn$blockScaledDot
// CHECK-SAME: <([i, jk, l], [i, mn, l], [i, jk, o], [i, mn, o])->([i, jk, mn], [p]) {i=2, j=2, k=128, l=512, m=4, n=128, o=16, p=0} need_replication={k, l, n, o, p}, custom>
module @tiles {
  func.func @main(%a: tensor<2x256x512xf8E4M3FN>, %b: tensor<2x512x512xf8E4M3FN>, %s: tensor<2x256x16xf8E8M0FNU>, %t: tensor<2x512x16xf8E8M0FNU>) -> tensor<2x256x512xf32> {
    %0:2 = stablehlo.custom_call @__cudnn$blockScaledDot(%a, %b, %s, %t) : (tensor<2x256x512xf8E4M3FN>, tensor<2x512x512xf8E4M3FN>, tensor<2x256x16xf8E8M0FNU>, tensor<2x512x16xf8E8M0FNU>) -> (tensor<2x256x512xf32>, tensor<0xui8>)
    return %0#0 : tensor<2x256x512xf32>
  }
}

// -----

// In a loop as anywhere else.
// CHECK-LABEL: module @loop
// CHECK: stablehlo.while
// CHECK: stablehlo.custom_call @__cublas$gemm
// CHECK-SAME: name = "cublas-product"
module @loop {
  func.func @main(%a: tensor<8x8xbf16>) -> tensor<8x8xbf16> {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %0:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, tensor<8x8xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1:2 = stablehlo.custom_call @__cublas$gemm(%x, %x) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]}}}"} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> (tensor<8x8xbf16>, tensor<64xi8>)
      stablehlo.return %i, %1#0 : tensor<i32>, tensor<8x8xbf16>
    }
    return %0#1 : tensor<8x8xbf16>
  }
}
