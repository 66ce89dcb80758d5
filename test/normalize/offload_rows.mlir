// State of layers that a loop goes over, stacked: the host keeps it, and a loop brings a layer's rows, updates them and
// returns them. What else the update makes is written into the buffer that it is returned in.
// RUN: rhino-opt %s --rhino-offload | filecheck %s
// RUN: rhino-opt %s --rhino-offload=count=1 --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=COUNT

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:[a-z0-9]*]]: tensor<4x512x1024xf32> {rhino.role = "param"
// CHECK-SAME: %[[M:[a-z0-9]*]]: tensor<4x512x1024xf32> {mhlo.memory_kind = "pinned_host", rhino.role = "opt_state"
// CHECK-SAME: %[[B:[a-z0-9]*]]: tensor<4x512x1024xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME: -> (tensor<4x512x1024xf32>, tensor<4x512x1024xf32> {mhlo.memory_kind = "pinned_host"}, tensor<4x512x1024xf32>, tensor<4x512x1024xf32> {mhlo.memory_kind = "pinned_host"}
// CHECK: %[[G:.*]]:2 = stablehlo.while
// Both stacks are of as many layers: one loop has all of a layer.
// CHECK: %[[HELD:.*]]:3 = stablehlo.optimization_barrier %[[B]], %[[M]], %[[G]]#1
// CHECK: %[[R:.*]]:7 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[BS:.*]] = %[[HELD]]#0, %[[MS:.*]] = %[[HELD]]#1, %[[VS:.*]] = %{{.*}}, %[[WS:.*]] = %[[W]], %[[GS:.*]] = %[[G]]#1, %[[RATE:.*]] = %{{[a-z0-9]*}})
// CHECK: stablehlo.constant dense<4>
// CHECK: stablehlo.compare LT, %[[I]]
// CHECK: } do {
// CHECK: %[[BI:.*]] = stablehlo.dynamic_slice %[[BS]], %[[I]], %{{.*}}, %{{.*}}, sizes = [1, 512, 1024]
// CHECK: %[[MI:.*]] = stablehlo.dynamic_slice %[[MS]], %[[I]]
// CHECK: stablehlo.custom_call @annotate_device_placement(%[[BI]]) {{{.*}}_xla_buffer_placement = "device"{{.*}} -> tensor<1x512x1024xf32>
// CHECK: %[[MD:.*]] = stablehlo.custom_call @annotate_device_placement(%[[MI]]) {{{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[GI:.*]] = stablehlo.dynamic_slice %[[GS]], %[[I]]
// CHECK-DAG: stablehlo.broadcast_in_dim %[[RATE]], dims = [] : (tensor<f32>) -> tensor<1x512x1024xf32>
// CHECK-DAG: %[[DECAY:.*]] = stablehlo.constant dense<0.899999976> : tensor<1x512x1024xf32>
// CHECK: %[[OLD:.*]] = stablehlo.multiply %[[MD]], %[[DECAY]]
// CHECK: %[[NEW:.*]] = stablehlo.add %[[OLD]], %[[GI]] : tensor<1x512x1024xf32>
// CHECK: %[[BACK:.*]] = stablehlo.custom_call @annotate_device_placement(%[[NEW]]) {{{.*}}_xla_buffer_placement = "pinned_host"
// CHECK: stablehlo.dynamic_update_slice %[[BS]]
// CHECK: stablehlo.dynamic_update_slice %[[MS]], %[[BACK]], %[[I]]
// What is returned in no argument's buffer has one of its own.
// CHECK: stablehlo.dynamic_update_slice %[[VS]]
// CHECK: stablehlo.dynamic_update_slice %[[WS]]
// CHECK: return %[[R]]#4, %[[R]]#2, %[[R]]#3, %[[R]]#1

// COUNT-DAG: 8388608 bytes
// COUNT-DAG: 1 updates
func.func @main(%w: tensor<4x512x1024xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %m: tensor<4x512x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}, %b: tensor<4x512x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 3 : i32}, %rate: tensor<f32> {rhino.role = "other"}, %x: tensor<512x1024xf32> {rhino.role = "batch"}) -> (tensor<4x512x1024xf32>, tensor<4x512x1024xf32>, tensor<4x512x1024xf32>, tensor<4x512x1024xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.broadcast_in_dim %none, dims = [] : (tensor<f32>) -> tensor<4x512x1024xf32>
  %r:2 = stablehlo.while(%i = %zero, %g = %start) : tensor<i32>, tensor<4x512x1024xf32>
   cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 512, 1024] : (tensor<4x512x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x512x1024xf32>
    %as = stablehlo.reshape %x : (tensor<512x1024xf32>) -> tensor<1x512x1024xf32>
    %made = stablehlo.multiply %row, %as : tensor<1x512x1024xf32>
    %put = stablehlo.dynamic_update_slice %g, %made, %i, %zero, %zero : (tensor<4x512x1024xf32>, tensor<1x512x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x512x1024xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %put : tensor<i32>, tensor<4x512x1024xf32>
  }
  %decay = stablehlo.constant dense<0.9> : tensor<4x512x1024xf32>
  %old = stablehlo.multiply %m, %decay : tensor<4x512x1024xf32>
  %nm = stablehlo.add %old, %r#1 : tensor<4x512x1024xf32>
  %nb = stablehlo.maximum %b, %r#1 : tensor<4x512x1024xf32>
  %rates = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<4x512x1024xf32>
  %d = stablehlo.multiply %nm, %rates : tensor<4x512x1024xf32>
  %nw = stablehlo.subtract %w, %d : tensor<4x512x1024xf32>
  return %nw, %nm, %d, %nb : tensor<4x512x1024xf32>, tensor<4x512x1024xf32>, tensor<4x512x1024xf32>, tensor<4x512x1024xf32>
}
