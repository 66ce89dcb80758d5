// RUN: rhino-opt %s --rhino-adopt-mesh --split-input-file --verify-diagnostics

sdy.mesh @a = <["sp"=4]>
sdy.mesh @b = <["tp"=2]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-note @+1 {{the other one is here}}
  %0 = sdy.manual_computation(%x) in_shardings=[<@a, [{"sp"}]>] out_shardings=[<@a, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    sdy.return %a : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  // expected-error @+2 {{the manual computation is over a mesh tp=2, another one over sp=4, and the axes of neither are made of the other's}}
  // expected-note @+1 {{write both for one mesh that has all axes}}
  %1 = sdy.manual_computation(%0) in_shardings=[<@b, [{"tp"}]>] out_shardings=[<@b, [{"tp"}]>] manual_axes={"tp"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["sp"=4], device_ids=[0, 2, 1, 3]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @+2 {{mesh @mesh lists its devices in an order of its own}}
  // expected-note @+1 {{build the mesh with the devices in jax's order, or use jax.sharding.AbstractMesh}}
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    sdy.return %a : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
