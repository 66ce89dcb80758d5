// cuDNN's convolutions and norms on a device's part: the same call on local shapes.
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// Batch over x, output channels over y.
// CHECK-LABEL: module @forward
// CHECK: sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}, {}, {}]>, <@mesh, [{"y"}, {}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}, {"y"}]>, <@mesh, [{}]>]
// CHECK-NEXT: stablehlo.custom_call @__cudnn$convForward
// CHECK-SAME: flops = 37748736 : i64
// CHECK-SAME: (tensor<2x16x16x64xbf16>, tensor<64x3x3x64xbf16>) -> (tensor<2x16x16x64xbf16>, tensor<0xui8>)
module @forward {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%x: tensor<4x16x16x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}, %w: tensor<128x3x3x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {}, {}]>}) -> tensor<4x16x16x128xbf16> {
    %0:2 = stablehlo.custom_call @__cudnn$convForward(%x, %w) {backend_config = "{\22cudnn_conv_backend_config\22:{\22conv_result_scale\22:1}}"} : (tensor<4x16x16x64xbf16>, tensor<128x3x3x64xbf16>) -> (tensor<4x16x16x128xbf16>, tensor<0xui8>)
    return %0#0 : tensor<4x16x16x128xbf16>
  }
}

// -----

// The gradient of the filter: each device has that of its part of the batch, and they are added up.
// CHECK-LABEL: module @filter
// CHECK: out_shardings=[<@mesh, [{"x"}, {}, {}, {}, {}]>]
// CHECK: stablehlo.custom_call @__cudnn$convBackwardFilter
// CHECK-SAME: (tensor<2x16x16x64xbf16>, tensor<2x16x16x128xbf16>) -> tensor<128x3x3x64xbf16>
// CHECK: stablehlo.reduce
// CHECK-SAME: applies stablehlo.add across dimensions = [0]
module @filter {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x16x16x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}, %y: tensor<4x16x16x128xbf16>) -> tensor<128x3x3x64xbf16> {
    %0 = stablehlo.custom_call @__cudnn$convBackwardFilter(%x, %y) : (tensor<4x16x16x64xbf16>, tensor<4x16x16x128xbf16>) -> tensor<128x3x3x64xbf16>
    return %0 : tensor<128x3x3x64xbf16>
  }
}

// -----

// Rows of a norm's gradients; the memory to work in keeps its size.
// CHECK-LABEL: module @norm
// CHECK: stablehlo.custom_call @__cudnn$norm
// CHECK-SAME: -> (tensor<32x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<64xui8>)
// CHECK: stablehlo.reduce
// CHECK-NOT: stablehlo.reduce
// CHECK: return
module @norm {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<64x512x1x1xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}, %s: tensor<1x512x1x1xbf16>, %r: tensor<64x1x1x1xf32>) -> tensor<1x512x1x1xbf16> {
    %1:4 = stablehlo.custom_call @__cudnn$norm(%x, %s, %x, %r, %r) {backend_config = "{\22cudnn_norm_backend_config\22:{\22kind\22:\22LAYER_BWD\22}}"} : (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<64x512x1x1xbf16>, tensor<64x1x1x1xf32>, tensor<64x1x1x1xf32>) -> (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<64xui8>)
    return %1#1 : tensor<1x512x1x1xbf16>
  }
}
