// mpmd's own verifier accepts a transfer that goes nowhere.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m0x = !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
func.func @main(%x: !m0) -> !m0x attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
  // expected-error @+2 {{transfer from mesh 'm0' to itself}}
  // expected-note @+1 {{use a resharding inside a fragment to change the sharding on one mesh}}
  %0 = mpmd.transfer %x : (!m0) -> !m0x
  return %0 : !m0x
}
