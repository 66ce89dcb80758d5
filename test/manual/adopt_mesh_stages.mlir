// A mesh that a pipeline's stages, or a given mesh, have no room for is dropped before planning; annotations=ignore says so.
// RUN: rhino-opt %s --rhino-adopt-mesh="topology=dgx-h100:1 stages=2" 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: rhino-opt %s --rhino-adopt-mesh="topology=dgx-h100:1 mesh=4x2" 2>&1 | filecheck %s --check-prefix=MESH
// RUN: rhino-opt %s --rhino-adopt-mesh="annotations=ignore" 2>&1 | filecheck %s --check-prefix=IGNORE

// STAGES: warning: the constraint is not kept: it is over a mesh data=2, model=4, and each of 2 stages has 4 devices
// STAGES-NOT: sdy.sharding_constraint %arg0
// MESH: warning: the constraint is not kept: it is over a mesh data=2, model=4, for which the mesh 4x2 has no place
// MESH-NOT: sdy.sharding_constraint %arg0
// IGNORE: remark: the constraint is ignored, as asked
// IGNORE-NOT: sdy.sharding_constraint %arg0
sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"data"}, {"model"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
