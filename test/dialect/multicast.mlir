// rhino.multicast: the unit tasks of a transfer, which partition the tensor.
// RUN: rhino-opt %s --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-verify | rhino-opt --rhino-verify | filecheck %s

!m0 = !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>
!w0 = !mpmd.mesh_tensor<"m0", tensor<4xi1>>
!w1 = !mpmd.mesh_tensor<"m1", tensor<4xi1>>
// CHECK: rhino.placement = {m0 = [0, 1], m1 = [5, 4]}
module attributes {rhino.placement = {m0 = [0, 1], m1 = [5, 4]}} {
  sdy.mesh @mesh = <["x"=2]>
  // Device 5 is the first of its mesh: it needs the first columns.
  // CHECK-LABEL: func.func @main
  func.func @main(%x: !m0, %y: !w0) -> (!m1, !w1) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    // CHECK: mpmd.transfer {rhino.multicast = {bound_s = 1.000000e+00 : f64, chunks = 4 : i64, edge = "forward 0 -> 1", makespan_s = 1.500000e+00 : f64, scheduler = "optimal", strategy = "broadcast", units = [
    // CHECK-SAME: {holders = [0], order = 0 : i64, receivers = [5], sender = 0 : i64, slice = {{\[}}[0, 2], [0, 4]]}
    %0 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal", chunks = 4 : i64, makespan_s = 1.5, bound_s = 1.0, units = [
      {slice = [[0, 2], [0, 4]], holders = [0], receivers = [5], sender = 0 : i64, order = 0 : i64},
      {slice = [[0, 2], [4, 8]], holders = [0], receivers = [4], sender = 0 : i64, order = 4 : i64},
      {slice = [[2, 4], [0, 4]], holders = [1], receivers = [5], sender = 1 : i64, order = 2 : i64},
      {slice = [[2, 4], [4, 8]], holders = [1], receivers = [4], sender = 1 : i64, order = 1 : i64}
    ]}} %x : (!m0) -> !m1
    // Another of the same edge, whose one unit both holders send a part of: a byte for each boolean.
    // CHECK: senders = {{\[}}[0, 3], [1, 1]]
    %1 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal", units = [
      {slice = [[0, 4]], holders = [0, 1], receivers = [4, 5], sender = 0 : i64, senders = [[0, 3], [1, 1]], order = 3 : i64}
    ]}} %y : (!w0) -> !w1
    return %0, %1 : !m1, !w1
  }
  // An argument that is kept on the first mesh gets to the second; a result gets to every device, which have their own rows.
  // CHECK-LABEL: func.func private @signature
  // CHECK-SAME: %arg1: {{.*}} {rhino.argument = {index = 0 : i64}, rhino.multicast = {edge = "argument 1"
  // CHECK-SAME: -> ({{.*}} {rhino.multicast = {edge = "results 0"
  func.func private @signature(%x: !m0 {rhino.argument = {index = 0 : i64}}, %y: !m1 {rhino.argument = {index = 0 : i64},
    rhino.multicast = {edge = "argument 1", strategy = "broadcast", scheduler = "optimal", units = [
      {slice = [[0, 2], [0, 4]], holders = [0], receivers = [5], sender = 0 : i64, order = 0 : i64},
      {slice = [[0, 2], [4, 8]], holders = [0], receivers = [4], sender = 0 : i64, order = 1 : i64},
      {slice = [[2, 4], [0, 4]], holders = [1], receivers = [5], sender = 1 : i64, order = 2 : i64},
      {slice = [[2, 4], [4, 8]], holders = [1], receivers = [4], sender = 1 : i64, order = 3 : i64}
    ]}}) -> (!m0 {rhino.multicast = {edge = "results 0", strategy = "broadcast", scheduler = "optimal", units = [
      {slice = [[0, 2], [0, 8]], holders = [0], receivers = [1, 4, 5], sender = 0 : i64, order = 0 : i64},
      {slice = [[2, 4], [0, 8]], holders = [1], receivers = [0, 4, 5], sender = 1 : i64, order = 1 : i64}
    ]}}) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    return %x : !m0
  }
}
