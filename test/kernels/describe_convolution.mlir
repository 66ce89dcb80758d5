// cuDNN's convolutions and norms: batch and channels are split, positions and what is normalised stay whole.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Batch (i), input channels (l) as a sum, output channels (o). The order of dimensions follows from the shapes.
// CHECK-LABEL: module @forward
// CHECK: stablehlo.custom_call @__cudnn$convForward
// CHECK-SAME: flops = 150994944 : i64, name = "cudnn-convolution", rate = "tensor", type = "bf16"}
// CHECK-SAME: <([i, j, k, l], [m, n, o, l])->([i, p, q, m], [r]) {i=4, j=16, k=16, l=64, m=128, n=3, o=3, p=16, q=16, r=0} reduction={l} need_replication={j, k, n, o, p, q, r}, custom>
module @forward {
  func.func @main(%x: tensor<4x16x16x64xbf16>, %w: tensor<128x3x3x64xbf16>) -> tensor<4x16x16x128xbf16> {
    %0:2 = stablehlo.custom_call @__cudnn$convForward(%x, %w) {backend_config = "{\22cudnn_conv_backend_config\22:{\22conv_result_scale\22:1}}"} : (tensor<4x16x16x64xbf16>, tensor<128x3x3x64xbf16>) -> (tensor<4x16x16x128xbf16>, tensor<0xui8>)
    return %0#0 : tensor<4x16x16x128xbf16>
  }
}

// -----

// A bias and an activation behind it: input channels (k) stay together. Channels are the second dimension here.
// CHECK-LABEL: module @activation
// CHECK: stablehlo.custom_call @__cudnn$convBiasActivationForward
// CHECK-SAME: <([i, j, k, l], [m, j, n, o], [m])->([i, m, p, q], [r])
// CHECK-SAME: need_replication={j, k, l, n, o, p, q, r}, custom>
module @activation {
  func.func @main(%x: tensor<4x64x16x16xbf16>, %w: tensor<128x64x3x3xbf16>, %b: tensor<128xf32>) -> tensor<4x128x16x16xbf16> {
    %0:2 = stablehlo.custom_call @__cudnn$convBiasActivationForward(%x, %w, %b) {backend_config = "{\22cudnn_conv_backend_config\22:{\22activation_mode\22:\22kRelu\22}}"} : (tensor<4x64x16x16xbf16>, tensor<128x64x3x3xbf16>, tensor<128xf32>) -> (tensor<4x128x16x16xbf16>, tensor<0xui8>)
    return %0#0 : tensor<4x128x16x16xbf16>
  }
}

// -----

// The gradient of the input is a sum over output channels (l), of the filter one over the batch (i).
// CHECK-LABEL: module @gradients
// CHECK: stablehlo.custom_call @__cudnn$convBackwardInput
// CHECK-SAME: flops = 150994944 : i64, name = "cudnn-convolution-backward"
// CHECK-SAME: <([i, j, k, l], [l, m, n, o])->([i, p, q, o], [r])
// CHECK-SAME: reduction={l}
// CHECK: stablehlo.custom_call @__cudnn$convBackwardFilter
// CHECK-SAME: flops = 150994944 : i64, name = "cudnn-convolution-backward"
// CHECK-SAME: <([i, j, k, l], [i, m, n, o])->([o, p, q, l], [r])
// CHECK-SAME: reduction={i}
module @gradients {
  func.func @main(%x: tensor<4x16x16x64xbf16>, %w: tensor<128x3x3x64xbf16>, %y: tensor<4x16x16x128xbf16>) -> (tensor<4x16x16x64xbf16>, tensor<128x3x3x64xbf16>) {
    %0:2 = stablehlo.custom_call @__cudnn$convBackwardInput(%y, %w) {backend_config = "{}"} : (tensor<4x16x16x128xbf16>, tensor<128x3x3x64xbf16>) -> (tensor<4x16x16x64xbf16>, tensor<0xui8>)
    %1:2 = stablehlo.custom_call @__cudnn$convBackwardFilter(%x, %y) {backend_config = "{}"} : (tensor<4x16x16x64xbf16>, tensor<4x16x16x128xbf16>) -> (tensor<128x3x3x64xbf16>, tensor<0xui8>)
    return %0#0, %1#0 : tensor<4x16x16x64xbf16>, tensor<128x3x3x64xbf16>
  }
}

// -----

// Eight groups (l): these are split, and the channels of a group (m, n) are not.
// CHECK-LABEL: module @grouped
// CHECK: <([i, j, k, lm], [ln, o, p, m])->([i, q, r, ln])
// CHECK-SAME: l=8, m=8, n=16
// CHECK-SAME: need_replication={j, k, m, n, o, p, q, r}, custom>
module @grouped {
  func.func @main(%x: tensor<4x16x16x64xbf16>, %w: tensor<128x3x3x8xbf16>) -> tensor<4x16x16x128xbf16> {
    %0 = stablehlo.custom_call @__cudnn$convForward(%x, %w) : (tensor<4x16x16x64xbf16>, tensor<128x3x3x8xbf16>) -> tensor<4x16x16x128xbf16>
    return %0 : tensor<4x16x16x128xbf16>
  }
}

// -----

// Layer normalisation and its gradients: rows (i) are split, gradients of scale and bias (sums) are sums over them.
// CHECK-LABEL: module @norm
// CHECK: stablehlo.custom_call @__cudnn$norm
// CHECK-SAME: flops = 0 : i64, name = "cudnn-norm", rate = "vector", type = "bf16"}
// CHECK-SAME: <([i, j, k, l], [m, j, k, l], [m, j, k, l])->([i, j, k, l], [i, n, o, p], [i, n, o, p], [q])
// CHECK: stablehlo.custom_call @__cudnn$norm
// CHECK-SAME: sums = [0]
// CHECK-SAME: ->([i, j, k, l], [m, j, k, l], [m, j, k, l])
module @norm {
  func.func @main(%x: tensor<64x512x1x1xbf16>, %s: tensor<1x512x1x1xbf16>) -> (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>) {
    %0:4 = stablehlo.custom_call @__cudnn$norm(%x, %s, %s) {backend_config = "{\22cudnn_norm_backend_config\22:{\22epsilon\22:1e-5,\22kind\22:\22LAYER_FWD_TRAIN\22}}"} : (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<1x512x1x1xbf16>) -> (tensor<64x512x1x1xbf16>, tensor<64x1x1x1xf32>, tensor<64x1x1x1xf32>, tensor<64xui8>)
    %1:3 = stablehlo.custom_call @__cudnn$norm(%x, %s, %0#0, %0#1, %0#2) {backend_config = "{\22cudnn_norm_backend_config\22:{\22kind\22:\22LAYER_BWD\22}}"} : (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<64x512x1x1xbf16>, tensor<64x1x1x1xf32>, tensor<64x1x1x1xf32>) -> (tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>, tensor<1x512x1x1xbf16>)
    return %1#0, %1#1 : tensor<64x512x1x1xbf16>, tensor<1x512x1x1xbf16>
  }
}
