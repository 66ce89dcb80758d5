// rhino-replicate-fragments: replicas of a stage share out the update that `rhino.distributed` marks.
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 | rhino-opt --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=STATS
// STATS: 1 shared-arguments
// No marks are left.
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 | filecheck %s --check-prefix=GONE
// GONE-NOT: rhino.distributed

sdy.mesh @mesh = <["x"=2]>

// Parameters are whole on each replica; momentum is in parts, within what splits it, and stays so.
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>> {{[^%]*}}rhino.role = "param"
// CHECK-SAME: tensor<8x8xf32>, sharding=<@mesh, [{"replica"}, {"x"}]>> {{[^%]*}}rhino.role = "opt_state"
// CHECK-SAME: -> (!mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>>
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{"replica"}, {"x"}]>>
// The sum of the replicas' gradients is scattered.
// CHECK: mpmd.fragment<mesh="stage0", origin=["update"], stage=0>
// CHECK: %[[SUM:.*]] = stablehlo.reduce({{.*}} across dimensions = [0] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
// CHECK: %[[WHOLE:.*]] = sdy.sharding_constraint %[[SUM]] <@mesh, [{}, {"x"}]>
// CHECK: %[[PART:.*]] = sdy.sharding_constraint %[[WHOLE]] <@mesh, [{"replica"}, {"x"}]>
// Each replica updates its part.
// CHECK: stablehlo.multiply {{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"replica"}, {"x"}]>]>}
// CHECK: %[[NEXT:.*]] = stablehlo.add %{{.*}}, %[[PART]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"replica"}, {"x"}]>]>}
// CHECK: stablehlo.subtract {{.*}} %[[NEXT]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"replica"}, {"x"}]>]>}
// What gathers the parameter is the type of the result.
// CHECK: -> (!mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>>, !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{"replica"}, {"x"}]>>)
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %m: tensor<8x8xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %x: tensor<8x8xf32> {rhino.role = "batch"}
  ) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %keep = stablehlo.constant dense<0.9> : tensor<8x8xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %xs = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<8x8xf32>
    attributes {rhino.microbatches = {count = 4 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"x"}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %cut = stablehlo.dynamic_slice %xs, %c0, %i, %c0, sizes = [2, 1, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x8xf32>
    %b = stablehlo.reshape %cut : (tensor<2x1x8xf32>) -> tensor<2x8xf32>
    %d = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %g = stablehlo.dot_general %b, %d, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %s = stablehlo.add %a, %g {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<8x8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %s : tensor<i32>, tensor<8x8xf32>
  }
  %k = stablehlo.multiply %m, %keep {rhino.distributed = 0 : i64, rhino.stage = {phase = "update", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
  %v = stablehlo.add %k, %r#1 {rhino.distributed = 0 : i64, rhino.stage = {phase = "update", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
  %u = stablehlo.subtract %w, %v {rhino.distributed = 0 : i64, rhino.stage = {phase = "update", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
  return %u, %v : tensor<8x8xf32>, tensor<8x8xf32>
}
