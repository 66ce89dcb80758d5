// What of a step's annotations a plan cannot keep is dropped, and said at its place.
// RUN: rhino-opt %s --rhino-adopt-mesh=topology=dgx-h100:1 --split-input-file --verify-diagnostics

// A mesh that does not divide the cluster.
sdy.mesh @mesh = <["data"=3]>
func.func @main(%x: tensor<12xf32>) -> tensor<12xf32> {
  // expected-warning @+2 {{the constraint is not kept, and 1 more like it: it is over a mesh data=3 of 3 devices, which do not divide the 8 of cluster dgx-h100:1}}
  // expected-note @+1 {{write it for a mesh whose size divides the number of devices, or annotations=ignore}}
  %0 = sdy.sharding_constraint %x <@mesh, [{"data"}]> : tensor<12xf32>
  %1 = stablehlo.tanh %0 : tensor<12xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"data"}]> : tensor<12xf32>
  return %2 : tensor<12xf32>
}

// -----

// A second mesh.
sdy.mesh @mesh = <["data"=2, "model"=4]>
sdy.mesh @other = <["all"=8]>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"data"}, {}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"model"}]> : tensor<8x8xf32>
  // expected-warning @+2 {{the constraint is not kept: it is over a mesh all=8, and the plan's has data=2, model=4}}
  // expected-note @+1 {{write all for one mesh that has all axes}}
  %2 = sdy.sharding_constraint %1 <@other, [{"all"}, {}]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// A dimension that does not divide, parts of axes, partial sums, devices in another order.
sdy.mesh @mesh = <["data"=8], device_ids=[0, 2, 1, 3, 4, 5, 6, 7]>
func.func @main(%x: tensor<13x8xf32>) -> tensor<13x8xf32> {
  // expected-warning @+4 {{the constraint is not kept: it is over data=8 in dim 0, which has size 13}}
  // expected-note @+3 {{constrain a dimension that divides, over whole axes}}
  // expected-warning @+2 {{mesh @mesh lists its devices in an order of its own, and a plan has them in jax's}}
  // expected-note @+1 {{only which devices are neighbours may differ}}
  %0 = sdy.sharding_constraint %x <@mesh, [{"data"}, {}]> : tensor<13x8xf32>
  // expected-warning @+2 {{the constraint is not kept: it is over a part of an axis in dim 1 (data:(1)2)}}
  // expected-note @+1 {{constrain a dimension that divides, over whole axes}}
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"data":(1)2}]> : tensor<13x8xf32>
  // expected-warning @+2 {{the constraint is not kept: it is a partial sum over data, which plans leave to XLA}}
  // expected-note @+1 {{constrain the sum instead}}
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {}], unreduced={"data"}> : tensor<13x8xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"data"}]> : tensor<13x8xf32>
  return %3 : tensor<13x8xf32>
}
