// Products of cuBLAS are written as ordinary operations on a device's parts, block-scaled ones stay the same call.
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// Rows over x; what is contracted over y: parts of the sum are added up behind. Nobody reads the memory to work in.
// CHECK-LABEL: module @gemm
// CHECK: %[[M:.*]]:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {"y"}]>, <@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"y"}, {"x"}, {}]>, <@mesh, [{}]>]
// CHECK-SAME: (%[[A:.*]]: tensor<4x32xbf16>, %[[B:.*]]: tensor<32x32xbf16>)
// CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [0], precision = [HIGHEST, DEFAULT] : (tensor<4x32xbf16>, tensor<32x32xbf16>) -> tensor<4x32xf32>
// CHECK: stablehlo.multiply %[[D]], %{{.*}} : tensor<4x32xf32>
// CHECK: stablehlo.convert %{{.*}} : (tensor<4x32xf32>) -> tensor<4x32xbf16>
// CHECK: stablehlo.reduce(%[[M]]#0 init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK-NOT: custom_call
module @gemm {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<8x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %w: tensor<64x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> tensor<8x32xbf16> {
    %0:2 = stablehlo.custom_call @__cublas$gemm(%a, %w) {backend_config = "{\22gemm_backend_config\22:{\22alpha_real\22:0.5,\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]},\22precision_config\22:{\22operand_precision\22:[\22HIGHEST\22,\22DEFAULT\22],\22algorithm\22:\22ALG_UNSET\22}}}"} : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> (tensor<8x32xbf16>, tensor<64xi8>)
    return %0#0 : tensor<8x32xbf16>
  }
}

// -----

// Columns, and with them the bias; relu. What is contracted is made whole.
// CHECK-LABEL: module @bias
// CHECK: sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}, {"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
// CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0] : (tensor<8x64xbf16>, tensor<64x16xbf16>) -> tensor<8x16xf32>
// CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
// CHECK: stablehlo.maximum
module @bias {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<8x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %w: tensor<64x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %b: tensor<32xbf16>) -> tensor<8x32xbf16> {
    %0 = stablehlo.custom_call @__cublas$lt$matmul(%a, %w, %b) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]},\22epilogue\22:\22BIAS_RELU\22}}", sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<8x64xbf16>, tensor<64x32xbf16>, tensor<32xbf16>) -> tensor<8x32xbf16>
    return %0 : tensor<8x32xbf16>
  }
}

// -----

// The largest value of fp8 is found among all devices' columns, y splitting nothing.
// CHECK-LABEL: module @fp8
// CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [1] : (tensor<8x64xf8E4M3FN>, tensor<16x64xf8E4M3FN>) -> tensor<8x16xf32>
// CHECK: stablehlo.clamp
// CHECK: stablehlo.convert %{{.*}} : (tensor<8x16xf32>) -> tensor<8x16xf8E4M3FN>
// CHECK: stablehlo.abs
// CHECK: "stablehlo.all_reduce"
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 2], [1, 3]]> : tensor<2x2xi64>
// CHECK: stablehlo.maximum
module @fp8 {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<8x64xf8E4M3FN>, %w: tensor<32x64xf8E4M3FN> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %s: tensor<f32>) -> (tensor<8x32xf8E4M3FN>, tensor<f32>) {
    %0:2 = stablehlo.custom_call @__cublas$lt$matmul$f8(%a, %w, %s, %s, %s) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\221\22]},\22damax_output\22:true}}"} : (tensor<8x64xf8E4M3FN>, tensor<32x64xf8E4M3FN>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<8x32xf8E4M3FN>, tensor<f32>)
    return %0#0, %0#1 : tensor<8x32xf8E4M3FN>, tensor<f32>
  }
}

// -----

// Rows over x, blocks of what is contracted over y: scales go with their blocks.
// CHECK-LABEL: module @block_scaled
// CHECK: (%{{.*}}: tensor<2x128x256xf8E4M3FN>, %{{.*}}: tensor<2x128x256xf8E4M3FN>, %{{.*}}: tensor<2x128x8xf8E8M0FNU>, %{{.*}}: tensor<2x128x8xf8E8M0FNU>)
// CHECK-NEXT: stablehlo.custom_call @__op$block_scaled_dot
// CHECK-SAME: rhino.kernel = {bytes = {{[0-9]+}} : i64, flops = 16777216 : i64
// CHECK-SAME: -> tensor<2x128x128xf32>
// CHECK: stablehlo.reduce
module @block_scaled {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<2x256x512xf8E4M3FN> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>}, %b: tensor<2x128x512xf8E4M3FN>, %s: tensor<2x256x16xf8E8M0FNU>, %t: tensor<2x128x16xf8E8M0FNU>) -> tensor<2x256x128xf32> {
    %0 = stablehlo.custom_call @__op$block_scaled_dot(%a, %b, %s, %t) {api_version = 2 : i32, backend_config = "{\22scaled_dot_backend_config\22: {\22lhs_batch_dimensions\22: [0], \22rhs_batch_dimensions\22: [0], \22dequantize_type\22: \22F32\22}}"} : (tensor<2x256x512xf8E4M3FN>, tensor<2x128x512xf8E4M3FN>, tensor<2x256x16xf8E8M0FNU>, tensor<2x128x16xf8E8M0FNU>) -> tensor<2x256x128xf32>
    return %0 : tensor<2x256x128xf32>
  }
}

// -----

// Without a mesh the product is written all the same: XLA takes no such calls.
// CHECK-LABEL: module @one_device
// CHECK: stablehlo.dot_general %arg0, %arg1
// CHECK-NOT: custom_call
module @one_device {
  func.func @main(%a: tensor<8x64xbf16>, %w: tensor<64x32xbf16>) -> tensor<8x32xbf16> {
    %0 = stablehlo.custom_call @__cublas$gemm(%a, %w) {backend_config = "{\22gemm_backend_config\22:{\22dot_dimension_numbers\22:{\22lhs_contracting_dimensions\22:[\221\22],\22rhs_contracting_dimensions\22:[\220\22]}}}"} : (tensor<8x64xbf16>, tensor<64x32xbf16>) -> tensor<8x32xbf16>
    return %0 : tensor<8x32xbf16>
  }
}
