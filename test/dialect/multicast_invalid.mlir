// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

!m0 = !mpmd.mesh_tensor<"m0", tensor<4x8xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // A unit is inside the tensor, its sender has it, someone needs it, and the units cover all.
  // expected-error @+4 {{rhino.multicast.units[0]: slice [[0, 2], [0, 9]] is not inside the shape [4, 8]}}
  // expected-error @+3 {{rhino.multicast.units[1]: sender 1 is not one of the holders [0]}}
  // expected-error @+2 {{rhino.multicast.units[1] has no receivers}}
  // expected-error @+1 {{rhino.multicast: the units hold 26 elements, but the tensor has 32}}
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", units = [
    {slice = [[0, 2], [0, 9]], holders = [0], receivers = [2], sender = 0 : i64, order = 0 : i64},
    {slice = [[3, 4], [0, 8]], holders = [0], receivers = [], sender = 1 : i64, order = 1 : i64}
  ]}} %x : (!m0) -> !m1
  return %0 : !m1
}

// -----

func.func @main(%x: tensor<4xf32>) {
  // expected-error @+1 {{rhino.multicast belongs on 'mpmd.transfer', not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %x {rhino.multicast = {strategy = "broadcast", units = []}} : tensor<4xf32>
  return
}

// -----

func.func @main(%x: tensor<4xf32>) {
  // expected-error @+1 {{rhino.multicast.strategy must be one of "send-recv"}}
  %0 = stablehlo.negate %x {rhino.multicast = {strategy = "pigeon", units = []}} : tensor<4xf32>
  return
}
