// rhino-form-fragments: stages on different numbers of devices, each with a mesh of its own.
// RUN: rhino-opt %s --rhino-form-fragments=meshes=mesh,mesh_1 | filecheck %s
// RUN: rhino-opt %s --rhino-form-fragments=meshes=mesh,mesh_1 | rhino-opt --rhino-verify | filecheck %s
// RUN: not rhino-opt %s --rhino-form-fragments=meshes=mesh,grid 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not rhino-opt %s --rhino-form-fragments=meshes=mesh,mesh_1,mesh 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not rhino-opt %s --rhino-form-fragments 2>&1 | filecheck %s --check-prefix=UNNAMED

// UNKNOWN: error: the module has no mesh @grid
// UNKNOWN: note: it has @mesh, @mesh_1
// COUNT: error: 'rhino-form-fragments': 3 meshes for 2 groups of devices
// UNNAMED: error: module has meshes @mesh, @mesh_1, but one @mesh is planned

sdy.mesh @mesh = <["x"=4]>
sdy.mesh @mesh_1 = <["x"=2]>

// Groups of 4 and of 2 devices, one after the other.
// CHECK: rhino.placement = {stage0 = [0, 1, 2, 3], stage1 = [4, 5]}
// CHECK-LABEL: func.func private @microbatch
// CHECK-SAME: topology = #mpmd.topology<<"stage0" : <["x"=4]>>, <"stage1" : <["x"=2]>>>
// Of two constraints the one over the mesh of the stage stays, and of a clone's layouts the one on this mesh.
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: stablehlo.exponential %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]>
// CHECK-NEXT: stablehlo.tanh
// What is sent has another layout there.
// CHECK: mpmd.transfer %[[H]] : (!mpmd.mesh_tensor<"stage0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>) -> !mpmd.mesh_tensor<"stage1", tensor<4x8xf32>, sharding=<@mesh_1, [{"x"}, {}]>>
// CHECK: mpmd.fragment<mesh="stage1", origin=["forward"], stage=1>
// CHECK: stablehlo.exponential %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{}, {"x"}]>]>}
// CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh_1, [{"x"}, {}]>
// CHECK-NEXT: stablehlo.add %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{"x"}, {}]>]>}
// What the loop carries on stage 1 is over its mesh.
// CHECK: return %{{.*}} : !mpmd.mesh_tensor<"stage1", tensor<4x8xf32>, sharding=<@mesh_1, [{}, {"x"}]>>
// A batch that both read is on each in the layout it has there.
// CHECK-LABEL: func.func @main
// CHECK-SAME: !mpmd.mesh_tensor<"stage0", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>> {rhino.argument = {index = 0 : i64}, rhino.role = "batch"}
// CHECK-SAME: !mpmd.mesh_tensor<"stage1", tensor<4x8xf32>, sharding=<@mesh_1, [{}, {"x"}]>> {rhino.argument = {index = 0 : i64}, rhino.role = "batch"}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"stage1", tensor<4x8xf32>, sharding=<@mesh_1, [{"x"}, {}]>> {rhino.argument = {index = 0 : i64}})
// Nothing of this is left in the fragments.
// CHECK-NOT: rhino.layouts
func.func @main(
    %x: tensor<4x8xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, rhino.layouts = {mesh_1 = [[[], ["x"]]]}}
  ) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, rhino.layouts = {mesh_1 = [[["x"], []]]}}) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4x8xf32>
    attributes {rhino.microbatches = {count = 2 : i64}, rhino.layouts = {mesh_1 = [[], [[], ["x"]]]}}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // Both stages compute it for themselves.
    %e = stablehlo.exponential %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>, rhino.layouts = {mesh_1 = [[[], ["x"]]]}} : tensor<4x8xf32>
    %e0 = sdy.sharding_constraint %e <@mesh, [{}, {}]> : tensor<4x8xf32>
    %e1 = sdy.sharding_constraint %e0 <@mesh_1, [{"x"}, {}]> : tensor<4x8xf32>
    %h = stablehlo.tanh %e1 {rhino.stage = {phase = "forward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>, rhino.layouts = {mesh_1 = [[["x"], []]]}} : tensor<4x8xf32>
    %y = stablehlo.add %h, %e1 {rhino.stage = {phase = "forward", stage = 1 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{"x"}, {}]>]>} : tensor<4x8xf32>
    %b = stablehlo.add %a, %y {rhino.stage = {phase = "backward", stage = 1 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{}, {"x"}]>]>} : tensor<4x8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4x8xf32>
  }
  return %r#1 : tensor<4x8xf32>
}
