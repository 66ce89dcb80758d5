// rhino-form-fragments: a step of two stages becomes fragments and transfers around one loop.
// RUN: rhino-opt %s --rhino-form-fragments | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments | rhino-opt --rhino-verify | filecheck %s

sdy.mesh @mesh = <["x"=2]>

// Groups are placed one after the other.
// CHECK: rhino.placement = {stage0 = [0, 1], stage1 = [2, 3]}
// CHECK: sdy.mesh @mesh

// In the loop: accumulators first, then what comes from outside, then the counters.
// CHECK-LABEL: func.func private @microbatch
// CHECK-SAME: (%[[ACC0:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>>
// CHECK-SAME: %[[ACC1:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage1", tensor<8x8xf32>
// CHECK-SAME: topology = #mpmd.topology<<"stage0" : <["x"=2]>>, <"stage1" : <["x"=2]>>>

// The slice of the batch is computed where it is read, from the counter; the counter has the type it had.
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: %[[I:.*]] = stablehlo.convert %{{.*}} : (tensor<ui32>) -> tensor<i32>
// CHECK: stablehlo.reshape %{{.*}} : (tensor<4x8xf32>) -> tensor<2x2x8xf32>
// CHECK: stablehlo.dynamic_slice %{{.*}}, %{{.*}}, %[[I]]
// CHECK: stablehlo.dot_general
// CHECK: %[[T:.*]] = stablehlo.tanh
// CHECK: mpmd.return %[[T]]
// A value goes to a stage once, though its forward and backward parts both read it.
// CHECK: %[[SENT:.*]] = mpmd.transfer %[[H]] : (!mpmd.mesh_tensor<"stage0", {{.*}}) -> !mpmd.mesh_tensor<"stage1"
// CHECK: %[[F1:.*]] = mpmd.fragment<mesh="stage1", origin=["forward"], stage=1> (%[[SENT]],
// CHECK: %[[B1:.*]]:2 = mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1> (%[[SENT]], %[[F1]],
// CHECK: %[[BACK:.*]] = mpmd.transfer %[[B1]]#0
// CHECK-NEXT: %[[B0:.*]] = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%[[H]], %[[BACK]],
// CHECK: return %[[B0]], %[[B1]]#1

// Arguments say which they were. The batch is read on both stages and is there twice; each parameter has one stage.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage0", tensor<8x8xf32>, sharding=<@mesh, [{}, {"x"}]>> {rhino.argument = {index = 0 : i64}, rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[W1:[a-z0-9]+]]: !mpmd.mesh_tensor<"stage1", tensor<8x8xf32>, sharding=<@mesh, [{}, {}]>> {rhino.argument = {index = 1 : i64}, rhino.role = "param", tf.aliasing_output = 1 : i32}
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>> {rhino.argument = {index = 2 : i64}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>> {rhino.argument = {index = 2 : i64}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"stage0", {{.*}} {jax.result_info = "w0", rhino.argument = {index = 0 : i64}}
// The zeros that accumulators start from are made on their stage.
// CHECK: %[[Z0:.*]] = mpmd.fragment<mesh="stage0", origin=["prepare"], stage=0> () ()
// CHECK: %[[Z1:.*]]:2 = mpmd.fragment<mesh="stage1", origin=["prepare"], stage=1> (%[[W1]])
// CHECK: stablehlo.transpose
// CHECK: %[[R:.*]]:2 = mpmd.for (%[[Z0]], %[[Z1]]#1) {iterations = 2 : ui32} (%[[A0:.*]]: !mpmd{{.*}}, %[[A1:.*]]: !mpmd{{.*}}, %[[N:.*]]: tensor<ui32>)
// CHECK: mpmd.assign %[[N]] : (tensor<ui32>) -> !mpmd.mesh_tensor<"stage0", tensor<ui32>>
// CHECK: mpmd.call @microbatch(%[[A0]], %[[A1]],
// A scalar of both stages takes two levels: each stage's part, and nothing else, then what needs both.
// CHECK: %[[N0:.*]] = mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (%[[R]]#0) (%{{[a-z0-9]+}}: tensor<8x8xf32>)
// CHECK: stablehlo.reduce
// CHECK-NEXT: mpmd.return
// CHECK: mpmd.transfer %[[N0]]
// CHECK: %[[N1:.*]] = mpmd.fragment<mesh="stage1", origin=["update"], stage=1> (%[[R]]#1)
// CHECK: mpmd.transfer %[[N1]]
// CHECK: %[[V0:.*]] = mpmd.fragment<mesh="stage0", origin=["update"], stage=0>
// CHECK: stablehlo.cosine
// CHECK: %[[V1:.*]] = mpmd.fragment<mesh="stage1", origin=["update"], stage=1>
// CHECK: return %[[V0]], %[[V1]]
func.func @main(
    %w0: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %w1: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
    %x: tensor<4x8xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
  ) -> (tensor<8x8xf32> {jax.result_info = "w0", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x8xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %xs = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<2x2x8xf32>
  %w1t = stablehlo.transpose %w1, dims = [1, 0] {rhino.stage = {phase = "prepare", stage = 1 : i64}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %zeros) : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
    attributes {rhino.microbatches = {count = 2 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"x"}]>, <@mesh, [{}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %cut = stablehlo.dynamic_slice %xs, %c0, %i, %c0, sizes = [2, 1, 8] : (tensor<2x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x8xf32>
    %b = stablehlo.reshape %cut : (tensor<2x1x8xf32>) -> tensor<2x8xf32>
    %d = stablehlo.dot_general %b, %w0, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %h = stablehlo.tanh %d {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<2x8xf32>
    %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 1 : i64}} : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %e = stablehlo.subtract %y, %b {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<2x8xf32>
    %g1 = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 1 : i64}} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %dh = stablehlo.dot_general %e, %w1t, contracting_dims = [1] x [0] {rhino.stage = {phase = "backward", stage = 1 : i64}} : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %hh = stablehlo.multiply %h, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<2x8xf32>
    %dd = stablehlo.multiply %dh, %hh {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<2x8xf32>
    %g0 = stablehlo.dot_general %b, %dd, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 0 : i64}} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %b0 = stablehlo.add %a0, %g0 {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<8x8xf32>
    %b1 = stablehlo.add %a1, %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<8x8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  %n0 = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] {rhino.stage = {phase = "update", stage = 0 : i64}} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  %n1 = stablehlo.reduce(%r#2 init: %zero) applies stablehlo.add across dimensions = [0, 1] {rhino.stage = {phase = "update", stage = 1 : i64}} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  %norm = stablehlo.add %n0, %n1 : tensor<f32>
  %wide = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
  %u0 = stablehlo.divide %r#1, %wide {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<8x8xf32>
  %k0 = stablehlo.cosine %w0 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<8x8xf32>
  %v0 = stablehlo.subtract %k0, %u0 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<8x8xf32>
  %u1 = stablehlo.divide %r#2, %wide {rhino.stage = {phase = "update", stage = 1 : i64}} : tensor<8x8xf32>
  %v1 = stablehlo.subtract %w1, %u1 {rhino.stage = {phase = "update", stage = 1 : i64}} : tensor<8x8xf32>
  return %v0, %v1 : tensor<8x8xf32>, tensor<8x8xf32>
}
