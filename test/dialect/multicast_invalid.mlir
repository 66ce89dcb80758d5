// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

!m0 = !mpmd.mesh_tensor<"m0", tensor<4x8xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // A unit is inside the tensor, its sender has it, someone needs it, and the units cover all.
  // expected-error @+4 {{rhino.multicast.units[0]: slice [[0, 2], [0, 9]] is not inside the shape [4, 8]}}
  // expected-error @+3 {{rhino.multicast.units[1]: sender 1 is not one of the holders [0]}}
  // expected-error @+2 {{rhino.multicast.units[1] has no receivers}}
  // expected-error @+1 {{rhino.multicast: the units hold 26 elements, but the tensor has 32}}
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "naive", units = [
    {slice = [[0, 2], [0, 9]], holders = [0], receivers = [2], sender = 0 : i64, order = 0 : i64},
    {slice = [[3, 4], [0, 8]], holders = [0], receivers = [], sender = 1 : i64, order = 1 : i64}
  ]}} %x : (!m0) -> !m1
  return %0 : !m1
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // Nothing is sent twice.
  // expected-error @+1 {{rhino.multicast: units[0] and units[1] overlap}}
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "naive", units = [
    {slice = [[0, 2]], holders = [0], receivers = [2], sender = 0 : i64, order = 0 : i64},
    {slice = [[1, 3]], holders = [0], receivers = [2], sender = 0 : i64, order = 1 : i64}
  ]}} %x : (!m0) -> !m1
  return %0 : !m1
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xbf16>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xbf16>>
func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // Of several senders all are holders, the first is named as the sender, and together they send the unit.
  // expected-error @+4 {{rhino.multicast: makespan_s 1 is below bound_s 2}}
  // expected-error @+3 {{rhino.multicast.units[0]: sender 7 is not one of the holders [0, 1]}}
  // expected-error @+2 {{rhino.multicast.units[0]: sender 1 is not one of the senders [0, 7]}}
  // expected-error @+1 {{rhino.multicast.units[0]: the senders send 7 bytes, but the slice has 8}}
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", makespan_s = 1.0, bound_s = 2.0, units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2], sender = 1 : i64, senders = [[0, 4], [7, 3]], order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  return %0 : !m1
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
module attributes {rhino.placement = {m0 = [0, 1], m1 = [2, 3]}} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    // Where meshes are is known: so is what their devices have and need.
    // expected-error @+4 {{rhino.multicast.units[0]: holder 9 is not a device of mesh 'm0'}}
    // expected-error @+3 {{rhino.multicast.units[0]: receiver 4 is not a device of mesh 'm1'}}
    // expected-error @+2 {{rhino.multicast.units[1]: holder 0 has [[0, 2]], not all of [[2, 4]]}}
    // expected-error @+1 {{rhino.multicast: device 2 needs 2 elements, but its units hold 0}}
    %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = [
      {slice = [[0, 2]], holders = [0, 9], receivers = [4], sender = 0 : i64, order = 0 : i64},
      {slice = [[2, 4]], holders = [0], receivers = [3], sender = 0 : i64, order = 1 : i64}
    ]}} %x : (!m0) -> !m1
    return %0 : !m1
  }
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
module attributes {rhino.placement = {m0 = [0, 1], m1 = [2, 3]}} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    // Nobody receives what it does not need.
    // expected-error @+4 {{rhino.multicast.units[0]: receiver 2 needs [[0, 2]], not all of [[0, 4]]}}
    // expected-error @+3 {{rhino.multicast.units[0]: receiver 3 needs [[2, 4]], not all of [[0, 4]]}}
    // expected-error @+2 {{rhino.multicast: device 2 needs 2 elements, but its units hold 4}}
    // expected-error @+1 {{rhino.multicast: device 3 needs 2 elements, but its units hold 4}}
    %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = [
      {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], sender = 0 : i64, order = 0 : i64}
    ]}} %x : (!m0) -> !m1
    return %0 : !m1
  }
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
func.func @main(%x: !m0) -> (!m1, !m1) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  %0 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal", units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], sender = 0 : i64, order = 1 : i64}
  ]}} %x : (!m0) -> !m1
  // Transfers of one edge have one order.
  // expected-error @+2 {{rhino.multicast: two units of edge 'forward 0 -> 1' have order 1}}
  // expected-error @+1 {{rhino.multicast: no unit of edge 'forward 0 -> 1' has order 0}}
  %1 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal", units = [
    {slice = [[0, 2]], holders = [0, 1], receivers = [2, 3], sender = 0 : i64, order = 1 : i64},
    {slice = [[2, 4]], holders = [0, 1], receivers = [2, 3], sender = 0 : i64, order = 2 : i64}
  ]}} %x : (!m0) -> !m1
  return %0, %1 : !m1, !m1
}

// -----

func.func @main(%x: tensor<4xf32>) {
  // expected-error @+1 {{rhino.multicast belongs on 'mpmd.transfer', not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %x {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = []}} : tensor<4xf32>
  return
}

// -----

func.func @main(%x: tensor<4xf32>) {
  // expected-error @+2 {{rhino.multicast.strategy must be one of "send-recv"}}
  // expected-error @+1 {{rhino.multicast.scheduler must be one of "naive"}}
  %0 = stablehlo.negate %x {rhino.multicast = {strategy = "pigeon", scheduler = "post", units = []}} : tensor<4xf32>
  return
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
func.func @main(%x: !m0) -> (!m1, !m1, !m1) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // Messages have a form; that they bring every byte is proved when they are read to be run.
  // expected-error @+2 {{rhino.multicast.hosts: device 1 is on two hosts}}
  // expected-error @+1 {{rhino.multicast.phases[0].steps[0]: hop [0, 1, 0, 0] is not [from, to, bundle, start, bytes]}}
  %0 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", hosts = [[0, 1], [1, 2, 3]],
    bundles = [[0]], phases = [{steps = [[[0, 1, 0, 0]]]}], units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], sender = 0 : i64, order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  // expected-error @+1 {{rhino.multicast has hosts, phases, but an edge has hosts, bundles and phases}}
  %1 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", hosts = [[0, 1], [2, 3]],
    phases = [], units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  // expected-error @+1 {{rhino.multicast.units[0]: sender missing is not one of the senders [0, 1]}}
  %2 = mpmd.transfer {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], senders = [[0, 8], [1, 8]], order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  return %0, %1, %2 : !m1, !m1, !m1
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
func.func @main(%x: !m0) -> (!m1, !m1) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  %0 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal", units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], order = 0 : i64}
  ]}} %x : (!m0) -> !m1
  // expected-error @+1 {{rhino.multicast: edge 'forward 0 -> 1' has its messages where it is first named, not here}}
  %1 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal",
    hosts = [[0, 1], [2, 3]], bundles = [], phases = [], units = [
    {slice = [[0, 4]], holders = [0, 1], receivers = [2, 3], order = 1 : i64}
  ]}} %x : (!m0) -> !m1
  return %0, %1 : !m1, !m1
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
module attributes {rhino.placement = {m0 = [0, 1], m1 = [2, 3]}} {
  sdy.mesh @mesh = <["x"=2]>
  // Nothing brings an argument to where it is kept. All get a result whole, but for what they have.
  // expected-error @+6 {{rhino.multicast is on an argument that is kept where it is read: nothing brings it (argument 0)}}
  // expected-error @+5 {{rhino.multicast: device 2 needs 4 elements, but its units hold 2 (argument 1)}}
  // expected-error @+4 {{rhino.multicast.units[0]: receiver 9 is not a device of the step (result 0)}}
  // expected-error @+3 {{rhino.multicast.units[1]: receiver 1 has [[2, 4]] already (result 0)}}
  // expected-error @+2 {{rhino.multicast: device 0 needs 2 elements, but its units hold 0 (result 0)}}
  // expected-error @+1 {{rhino.multicast: device 1 needs 2 elements, but its units hold 4 (result 0)}}
  func.func @main(%x: !m0 {rhino.argument = {index = 0 : i64}, rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = []}}, %y: !m1 {rhino.argument = {index = 0 : i64}, rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = [{slice = [[0, 2]], holders = [0], receivers = [2, 3], order = 0 : i64}, {slice = [[2, 4]], holders = [1], receivers = [3], order = 1 : i64}]}}) -> (!m0 {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = [{slice = [[0, 2]], holders = [0], receivers = [1, 2, 3, 9], order = 0 : i64}, {slice = [[2, 4]], holders = [1], receivers = [1, 2, 3], order = 1 : i64}]}}) attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    return %x : !m0
  }
}

// -----

// expected-error @+1 {{rhino.multicast is on result 0, which is on no mesh (result 0)}}
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {rhino.multicast = {strategy = "broadcast", scheduler = "optimal", units = []}}) {
  return %x : tensor<4xf32>
}
