// rhino-replicate-fragments: two replicas of each stage share four micro-batches out.
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=2 | rhino-opt --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=1 | filecheck %s --check-prefix=ONE
// With one replica nothing changes.
// RUN: rhino-opt %s --rhino-form-fragments > %t.formed
// RUN: rhino-opt %s --rhino-form-fragments --rhino-replicate-fragments=count=1 | diff %t.formed -

// ONE: sdy.mesh @mesh = <["x"=2]>
// ONE: iterations = 4 : ui32

sdy.mesh @mesh = <["x"=2]>

// Each group has twice as many devices, and its mesh the replicas in front.
// CHECK: rhino.placement = {stage0 = [0, 1, 2, 3], stage1 = [4, 5, 6, 7]}
// CHECK: sdy.mesh @mesh = <["replica"=2, "x"=2]>

// Accumulators have one part per replica; parameters, the batch and the counter are the same for all.
// CHECK-LABEL: func.func private @microbatch
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<2x8x8xf32>, sharding=<@mesh, [{"replica"}, {}, {"x"}]>>
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", tensor<2x8xf32>, sharding=<@mesh, [{"replica"}, {}]>>
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>
// CHECK-SAME: topology = #mpmd.topology<<"stage0" : <["replica"=2, "x"=2]>>, <"stage1" : <["replica"=2, "x"=2]>>>
// A replica does what the stage did, for the micro-batch 2 * round + replica.
// CHECK: mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: %[[IOTA:.*]] = stablehlo.iota dim = 0 : tensor<2xi32>
// CHECK: sdy.manual_computation(%[[IOTA]],
// CHECK-SAME: manual_axes={"replica"}
// CHECK: %[[MINE:.*]] = stablehlo.reshape %{{.*}} : (tensor<1xi32>) -> tensor<i32>
// CHECK: %[[R:.*]] = stablehlo.convert %[[MINE]] : (tensor<i32>) -> tensor<ui32>
// CHECK: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<ui32>
// CHECK: %[[M:.*]] = stablehlo.multiply %{{.*}}, %[[TWO]]
// CHECK: stablehlo.add %[[M]], %[[R]]
// CHECK: stablehlo.dot_general {{.*}} (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
// CHECK: sdy.return {{.*}} : tensor<1x2x8xf32>
// What goes to the next stage has a part per replica, too.
// CHECK: mpmd.transfer {{.*}}"stage0", tensor<2x2x8xf32>, sharding=<@mesh, [{"replica"}, {}, {}]>
// CHECK: mpmd.fragment<mesh="stage1", origin=["forward"], stage=1>
// CHECK: mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1>
// CHECK: mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0>
// The signature stays.
// CHECK-LABEL: func.func @main
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>> {rhino.argument = {index = 0 : i64}
// What is added up starts with the first replica, elsewhere with zeros, made where the start was made...
// CHECK: %[[Z0:.*]] = mpmd.fragment<mesh="stage0", origin=["prepare"], stage=0> () ()
// CHECK: stablehlo.select {{.*}} : tensor<2x8x8xi1>, tensor<2x8x8xf32>
// CHECK: mpmd.return {{.*}} : tensor<2x8x8xf32>
// ...or in a fragment of its own, for an argument; of what is the largest every replica gets a copy.
// CHECK: mpmd.fragment<mesh="stage1", origin=["prepare"], stage=1>
// CHECK: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [1] : (tensor<8xf32>) -> tensor<2x8xf32>
// CHECK-NEXT: mpmd.return %[[WIDE]]
// Two rounds of two micro-batches.
// CHECK: %[[R:.*]]:2 = mpmd.for {{.*}} {iterations = 2 : ui32}
// One reader brings the parts together itself; a result, or what two read, takes a fragment.
// CHECK: mpmd.fragment<mesh="stage1", origin=["update"], stage=1> (%[[R]]#1) (%[[PARTS:.*]]: tensor<2x8xf32>)
// XLA's all-reduce of the largest passes over NaN: each replica gets all of them.
// CHECK: %[[ALL:.*]] = sdy.sharding_constraint %[[PARTS]] <@mesh, [{}, {}]>
// CHECK: stablehlo.reduce(%[[ALL]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [0]
// CHECK: mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (
// CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
// CHECK: stablehlo.subtract
func.func @main(
    %w0: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %m: tensor<8xf32> {rhino.role = "other"},
    %x: tensor<8x8xf32> {rhino.role = "batch"}
  ) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %xs = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %m) : tensor<i32>, tensor<8x8xf32>, tensor<8xf32>
    attributes {rhino.microbatches = {count = 4 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"x"}]>, <@mesh, [{}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %cut = stablehlo.dynamic_slice %xs, %c0, %i, %c0, sizes = [2, 1, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x8xf32>
    %b = stablehlo.reshape %cut : (tensor<2x1x8xf32>) -> tensor<2x8xf32>
    %d = stablehlo.dot_general %b, %w0, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %h = stablehlo.tanh %d {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<2x8xf32>
    %most = stablehlo.reduce(%h init: %none) applies stablehlo.maximum across dimensions = [0] {rhino.stage = {phase = "forward", stage = 1 : i64}} : (tensor<2x8xf32>, tensor<f32>) -> tensor<8xf32>
    %e = stablehlo.multiply %h, %h {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<2x8xf32>
    %b1 = stablehlo.maximum %a1, %most {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<8xf32>
    %g = stablehlo.dot_general %b, %e, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %b0 = stablehlo.add %a0, %g {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<8x8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<8x8xf32>, tensor<8xf32>
  }
  %v0 = stablehlo.subtract %w0, %r#1 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<8x8xf32>
  return %v0, %r#2 : tensor<8x8xf32>, tensor<8xf32>
}
