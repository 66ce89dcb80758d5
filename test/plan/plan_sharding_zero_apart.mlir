// An update may be laid out otherwise than its parameter (ZeRO-1 and 2): what is given here, a whole parameter and split
// moments, is one reduce-scatter of the gradient and one all-gather of the next parameter, which its result's sharding says.
// RUN: rhino-opt %s --split-input-file --rhino-plan-sharding="topology=dgx-h100:1" | filecheck %s
// Read back, it is priced as it was planned.
// RUN: rhino-opt %s --split-input-file --rhino-plan-sharding="topology=dgx-h100:1" -o %t
// RUN: rhino-opt %t --split-input-file --rhino-estimate="topology=dgx-h100:1 remarks=0" 2>&1 | filecheck %s --check-prefix=READ

// CHECK-LABEL: module @one_axis
// One gradient scattered and one parameter gathered: 4096 x 4096 f32, 7/8 of it sent.
// CHECK-SAME: collectives = {"all-gather" = 1 : i64, "reduce-scatter" = 1 : i64}
// CHECK-SAME: comm_bytes = {"all-gather" = 58720256 : i64, "reduce-scatter" = 58720256 : i64}
// CHECK: func.func @main(%[[W:[^:]*]]: tensor<4096x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>
// CHECK-SAME: %[[M:[^:]*]]: tensor<4096x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// The parameter is returned whole, the moments split.
// CHECK-SAME: -> (tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// Computing reads the parameter as it is kept.
// CHECK: stablehlo.dot_general %{{.*}}, %[[W]], contracting_dims = [1] x [0]
// CHECK: %[[G:.*]] = stablehlo.dot_general %{{.*}}, contracting_dims = [0] x [0] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: stablehlo.add %[[M]], %[[G]] {{.*}}<@mesh, [{"x"}, {}]>
// The update reads a slice of it, and nothing is said of its result but where it is made.
// CHECK: %[[PART:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[NEXT:.*]] = stablehlo.subtract %[[PART]], %{{.*}} {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: return %[[NEXT]],
// READ: remark: step {{.*}} all-gather 56.00 MiB in 1, reduce-scatter 56.00 MiB in 1
module @one_axis {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%w: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, rhino.role = "param", tf.aliasing_output = 0 : i32},
                  %m: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, rhino.role = "opt_state", tf.aliasing_output = 1 : i32},
                  %x: tensor<16384x4096xf32> {rhino.role = "batch"}, %y: tensor<16384x4096xf32> {rhino.role = "batch"})
      -> (tensor<4096x4096xf32>, tensor<4096x4096xf32>) {
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16384x4096xf32>, tensor<4096x4096xf32>) -> tensor<16384x4096xf32>
    %e = stablehlo.subtract %p, %y : tensor<16384x4096xf32>
    %g = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<16384x4096xf32>, tensor<16384x4096xf32>) -> tensor<4096x4096xf32>
    %nm = stablehlo.add %m, %g : tensor<4096x4096xf32>
    %s = stablehlo.tanh %nm : tensor<4096x4096xf32>
    %nw = stablehlo.subtract %w, %s : tensor<4096x4096xf32>
    return %nw, %nm : tensor<4096x4096xf32>, tensor<4096x4096xf32>
  }
}

// -----

// Split over two axes, along two dimensions: gathered by one, then by the other, with a stop in between that is marked.
// CHECK-LABEL: module @two_axes
// CHECK-SAME: collectives = {"all-gather" = 2 : i64
// CHECK: -> (tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}
// CHECK: %[[NEXT2:.*]] = stablehlo.subtract {{.*}}<@mesh, [{"x"}, {"y"}]>
// CHECK-NEXT: %[[STOP:.*]] = sdy.sharding_constraint %[[NEXT2]] <@mesh, [{{.*}}]> {rhino.constraint = "copy"}
// CHECK-NEXT: return %[[STOP]],
// READ-NOT: cannot be read back
// READ: remark: step {{.*}} all-gather {{.*}} in 2
module @two_axes {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%w: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, rhino.role = "param", tf.aliasing_output = 0 : i32},
                  %m: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, rhino.role = "opt_state", tf.aliasing_output = 1 : i32},
                  %x: tensor<16384x4096xf32> {rhino.role = "batch"}, %y: tensor<16384x4096xf32> {rhino.role = "batch"})
      -> (tensor<4096x4096xf32>, tensor<4096x4096xf32>) {
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16384x4096xf32>, tensor<4096x4096xf32>) -> tensor<16384x4096xf32>
    %e = stablehlo.subtract %p, %y : tensor<16384x4096xf32>
    %g = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<16384x4096xf32>, tensor<16384x4096xf32>) -> tensor<4096x4096xf32>
    %nm = stablehlo.add %m, %g : tensor<4096x4096xf32>
    %s = stablehlo.tanh %nm : tensor<4096x4096xf32>
    %nw = stablehlo.subtract %w, %s : tensor<4096x4096xf32>
    return %nw, %nm : tensor<4096x4096xf32>, tensor<4096x4096xf32>
  }
}
