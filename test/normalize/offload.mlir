// Adam of two parameters, written as optax does: all first moments, all second ones, then the new parameters. Each
// update is put together and brings its moments; the second one waits until those of the first are back.
// RUN: rhino-opt %s --rhino-offload | filecheck %s
// RUN: rhino-opt %s --rhino-offload=count=1 | filecheck %s --check-prefix=ONE
// RUN: rhino-opt %s --rhino-offload=count=0 | filecheck %s --check-prefix=NONE
// RUN: rhino-opt %s --rhino-offload --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=COUNT

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:.*]]: tensor<512x1024xf32> {rhino.role = "param"
// CHECK-SAME: %[[M0:[a-z0-9]*]]: tensor<512x1024xf32> {mhlo.memory_kind = "pinned_host", rhino.role = "opt_state"
// CHECK-SAME: %[[M1:[a-z0-9]*]]: tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME: %[[V0:[a-z0-9]*]]: tensor<512x1024xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME: %[[V1:[a-z0-9]*]]: tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host"
// What is small is not worth it.
// CHECK-SAME: %{{[a-z0-9]*}}: tensor<1024xf32> {rhino.role = "opt_state"
// CHECK-SAME: -> (tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32> {mhlo.memory_kind = "pinned_host"}, tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host"}, tensor<512x1024xf32> {mhlo.memory_kind = "pinned_host"}, tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host"}, tensor<1024xf32>)
// The first gradient is there: its moments come.
// CHECK: %[[G0:.*]] = stablehlo.dot_general
// CHECK: %[[HELD:.*]]:3 = stablehlo.optimization_barrier %[[M0]], %[[V0]], %[[G0]]
// CHECK: %[[M:.*]] = stablehlo.custom_call @annotate_device_placement(%[[HELD]]#0) {{{.*}}_xla_buffer_placement = "device"
// CHECK: %[[V:.*]] = stablehlo.custom_call @annotate_device_placement(%[[HELD]]#1) {{{.*}}_xla_buffer_placement = "device"
// CHECK: %[[NM:.*]] = stablehlo.add %[[M]], %[[G0]]
// CHECK: %[[S:.*]] = stablehlo.multiply %[[G0]], %[[G0]]
// CHECK: %[[NV:.*]] = stablehlo.add %[[V]], %[[S]]
// CHECK: %[[D:.*]] = stablehlo.divide %[[NM]], %[[NV]]
// CHECK: stablehlo.subtract %[[W0]], %[[D]]
// CHECK: %[[MB:.*]] = stablehlo.custom_call @annotate_device_placement(%[[NM]]) {{{.*}}_xla_buffer_placement = "pinned_host"
// CHECK: %[[VB:.*]] = stablehlo.custom_call @annotate_device_placement(%[[NV]]) {{{.*}}_xla_buffer_placement = "pinned_host"
// CHECK: stablehlo.optimization_barrier %[[M1]], %[[V1]], %[[MB]], %[[VB]]
// CHECK: return %{{.*}}, %{{.*}}, %[[MB]], %{{.*}}, %[[VB]]

// The largest first: the moments of the second parameter.
// ONE-LABEL: func.func @main
// ONE-SAME: %{{[a-z0-9]*}}: tensor<512x1024xf32> {rhino.role = "opt_state"
// ONE-SAME: tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host"
// ONE-COUNT-4: annotate_device_placement
// ONE-NOT: annotate_device_placement

// NONE-NOT: pinned_host
// NONE: return

// COUNT-DAG: 12582912 bytes
// COUNT-DAG: 2 updates
func.func @main(%w0: tensor<512x1024xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %w1: tensor<1024x1024xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32}, %m0: tensor<512x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 2 : i32}, %m1: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 3 : i32}, %v0: tensor<512x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 4 : i32}, %v1: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 5 : i32}, %b: tensor<1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 6 : i32}, %x: tensor<64x1024xf32> {rhino.role = "batch"}) -> (tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<1024xf32>) {
  %y = stablehlo.slice %x [0:64, 0:512] : (tensor<64x1024xf32>) -> tensor<64x512xf32>
  %g0 = stablehlo.dot_general %y, %x, contracting_dims = [0] x [0] : (tensor<64x512xf32>, tensor<64x1024xf32>) -> tensor<512x1024xf32>
  %nm0 = stablehlo.add %m0, %g0 : tensor<512x1024xf32>
  %g1 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %nm1 = stablehlo.add %m1, %g1 : tensor<1024x1024xf32>
  %s0 = stablehlo.multiply %g0, %g0 : tensor<512x1024xf32>
  %nv0 = stablehlo.add %v0, %s0 : tensor<512x1024xf32>
  %s1 = stablehlo.multiply %g1, %g1 : tensor<1024x1024xf32>
  %nv1 = stablehlo.add %v1, %s1 : tensor<1024x1024xf32>
  %d0 = stablehlo.divide %nm0, %nv0 : tensor<512x1024xf32>
  %nw0 = stablehlo.subtract %w0, %d0 : tensor<512x1024xf32>
  %d1 = stablehlo.divide %nm1, %nv1 : tensor<1024x1024xf32>
  %nw1 = stablehlo.subtract %w1, %d1 : tensor<1024x1024xf32>
  %nb = stablehlo.add %b, %b : tensor<1024xf32>
  return %nw0, %nw1, %nm0, %nm1, %nv0, %nv1, %nb : tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<1024xf32>
}
