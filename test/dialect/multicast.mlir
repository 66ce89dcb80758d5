// rhino.multicast: the unit tasks of a transfer, which partition the tensor.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

!m0 = !mpmd.mesh_tensor<"m0", tensor<4x8xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // CHECK: mpmd.transfer {rhino.multicast = {strategy = "broadcast", units = [
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", units = [
    {slice = [[0, 2], [0, 8]], holders = [0], receivers = [2, 3], sender = 0 : i64, order = 0 : i64, chunks = 4 : i64},
    {slice = [[2, 4], [0, 8]], holders = [0, 1], receivers = [3], sender = 1 : i64, order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  return %0 : !m1
}
