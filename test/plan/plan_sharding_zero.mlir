// Adam on one layer: the parameter, its moments and its gradient are split (ZeRO-3), the parameter is gathered to be used,
// the gradient reduce-scattered. That sends no more than an all-reduce of the gradient, and fits under a tight limit too. Small
// ones are all-reduced: two collectives start later than one.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8 memory-limit=210000000" | filecheck %s

// CHECK: collectives = {"all-gather" = 1 : i64, "reduce-scatter" = 1 : i64}
// One parameter gathered and one gradient scattered: 512 x 512 f32, 7/8 of it sent.
// CHECK-SAME: comm_bytes = {"all-gather" = 58720256 : i64, "reduce-scatter" = 58720256 : i64}
// A peak of 201 MB under the limit of 210.
// CHECK-SAME: peak_bytes = 20{{.......}} : i64
// CHECK: func.func @main(%[[W:[^:]*]]: tensor<4096x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[M:[^:]*]]: tensor<4096x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %{{[^:]*}}: tensor<4096x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[X:[^:]*]]: tensor<16384x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK: %[[WHOLE:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{}, {}]>
// CHECK-NEXT: stablehlo.dot_general %[[X]], %[[WHOLE]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: %[[G:.*]] = stablehlo.dot_general %[[X]], %{{.*}}, contracting_dims = [0] x [0] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: stablehlo.add %[[M]], %[[G]] {{.*}}<@mesh, [{"x"}, {}]>
func.func @main(%w: tensor<4096x4096xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %m: tensor<4096x4096xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32},
                %v: tensor<4096x4096xf32> {rhino.role = "opt_state", tf.aliasing_output = 2 : i32},
                %x: tensor<16384x4096xf32> {rhino.role = "batch"}, %y: tensor<16384x4096xf32> {rhino.role = "batch"})
    -> (tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>) {
  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16384x4096xf32>, tensor<4096x4096xf32>) -> tensor<16384x4096xf32>
  %e = stablehlo.subtract %p, %y : tensor<16384x4096xf32>
  %g = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<16384x4096xf32>, tensor<16384x4096xf32>) -> tensor<4096x4096xf32>
  %gg = stablehlo.multiply %g, %g : tensor<4096x4096xf32>
  %nm = stablehlo.add %m, %g : tensor<4096x4096xf32>
  %nv = stablehlo.add %v, %gg : tensor<4096x4096xf32>
  %s = stablehlo.rsqrt %nv : tensor<4096x4096xf32>
  %d = stablehlo.multiply %nm, %s : tensor<4096x4096xf32>
  %nw = stablehlo.subtract %w, %d : tensor<4096x4096xf32>
  return %nw, %nm, %nv : tensor<4096x4096xf32>, tensor<4096x4096xf32>, tensor<4096x4096xf32>
}
