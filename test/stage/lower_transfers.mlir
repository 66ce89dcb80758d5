// rhino-lower-transfers: each transfer between stages as unit tasks, with senders and an order, on the real devices.
// RUN: rhino-opt %s --rhino-lower-transfers --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-lower-transfers --rhino-verify | rhino-opt --rhino-verify | filecheck %s
// RUN: rhino-opt %s --rhino-lower-transfers='strategy=send-recv scheduler=naive' | filecheck %s --check-prefix=SEND
// RUN: rhino-opt %s --rhino-lower-transfers=topology=dgx-h100:1 | filecheck %s --check-prefix=HOST
// RUN: rhino-opt %s --rhino-lower-transfers --mlir-pass-statistics -o %t 2>&1 | filecheck %s --check-prefix=STATS
// RUN: rhino-opt %s --rhino-lower-transfers | rhino-opt --rhino-schedule=schedule=eager-1f1b --rhino-verify | filecheck %s --check-prefix=SCHEDULE

// STATS: 4 transfers
// STATS: 12 units
// STATS: 5 plans

// On one host nothing is sent over a network: there are no messages, and nobody sends.
// HOST: rhino.multicast = {bound_s = 0.000000e+00 : f64, bundles = []
// HOST-SAME: hosts = {{\[}}[0, 1, 2, 3, 4, 5, 6, 7]]
// HOST-SAME: phases = []
// HOST-SAME: holders = [0, 2], order = 0 : i64, receivers = [4, 5], slice
// HOST-LABEL: func.func @main
// HOST-NOT: argument 3
// HOST-NOT: results 1

// SCHEDULE: schedule = "eager-1f1b"
// SCHEDULE: rhino.multicast = {bound_s

!sums0 = !mpmd.mesh_tensor<"stage0", tensor<64x64xf32>, sharding=<@mesh, [{}, {"y"}]>>
!half0 = !mpmd.mesh_tensor<"stage0", tensor<64x64xf32>, sharding=<@mesh, [{}, {"y"}]>>
!rows1 = !mpmd.mesh_tensor<"stage1", tensor<64x64xf32>, sharding=<@mesh, [{"x"}, {}]>>
!rows0 = !mpmd.mesh_tensor<"stage0", tensor<64x64xf32>, sharding=<@mesh, [{"x"}, {}]>>
!last1 = !mpmd.mesh_tensor<"stage1", tensor<64x64xf32>, sharding=<@mesh, [{}, {"y"}]>>
!flag0 = !mpmd.mesh_tensor<"stage0", tensor<4xi1>>
!flag1 = !mpmd.mesh_tensor<"stage1", tensor<4xi1>>

module attributes {
  rhino.cluster = {device = "v100", devices_per_host = 4 : i64, hosts = 2 : i64, name = "p3.8xlarge:2"},
  rhino.placement = {stage0 = [0, 1, 2, 3], stage1 = [4, 5, 6, 7]}
} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  // CHECK-LABEL: func.func private @microbatch
  // SEND-LABEL: func.func private @microbatch
  func.func private @microbatch(%acc: !sums0, %x: !half0) -> !sums0 attributes {topology = #mpmd.topology<<"stage0": <["x"=2, "y"=2]>>, <"stage1": <["x"=2, "y"=2]>>>} {
    %0:2 = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0> (%x) (%a: tensor<64x64xf32>) {
      %h = stablehlo.tanh %a : tensor<64x64xf32>
      %f = stablehlo.constant dense<true> : tensor<4xi1>
      mpmd.return %h, %f : tensor<64x64xf32>, tensor<4xi1>
    } : (!half0) -> (!half0, !flag0)
    // Columns become rows: four slices, each with two holders and two receivers. The flags, whole on every device, are of
    // the same edge: one order counts through the units of both.
    // What is sent stands on the first transfer of the edge: all five units are in the bundle that host 0 sends to host 1.
    // CHECK: mpmd.transfer {rhino.multicast = {bound_s = {{.*}}, bundles = {{\[}}[0, 1, 2, 3, 4]], chunks = {{.*}}, edge = "forward 0 -> 1", hosts = {{\[}}[0, 1, 2, 3], [4, 5, 6, 7]], makespan_s = {{.*}}, phases = [{steps = {{\[}}{{\[}}[0, 1, 0, 0, 16388]]]}], scheduler = "optimal", strategy = "broadcast", units = [
    // CHECK-SAME: {holders = [0, 2], order = {{[0-4]}} : i64, receivers = [4, 5], sender = 0 : i64, slice = {{\[}}[0, 32], [0, 32]]}
    // CHECK-SAME: {holders = [1, 3], order = {{[0-4]}} : i64, receivers = [4, 5], sender = 1 : i64, slice = {{\[}}[0, 32], [32, 64]]}
    // CHECK-SAME: {holders = [0, 2], order = {{[0-4]}} : i64, receivers = [6, 7], sender = 0 : i64, slice = {{\[}}[32, 64], [0, 32]]}
    // CHECK-SAME: {holders = [1, 3], order = {{[0-4]}} : i64, receivers = [6, 7], sender = 1 : i64, slice = {{\[}}[32, 64], [32, 64]]}
    // CHECK-SAME: %0#0
    // In the given order, the first holder sends.
    // SEND: rhino.multicast = {{.*}} scheduler = "naive", strategy = "send-recv"
    // SEND-SAME: order = 0 : i64, receivers = [4, 5], sender = 0 : i64, slice = {{\[}}[0, 32], [0, 32]]
    // SEND-SAME: order = 3 : i64, receivers = [6, 7], sender = 1 : i64, slice = {{\[}}[32, 64], [32, 64]]
    // SEND: order = 4 : i64
    %1 = mpmd.transfer %0#0 : (!half0) -> !rows1
    // CHECK: mpmd.transfer {rhino.multicast = {{.*}} edge = "forward 0 -> 1"
    // CHECK-SAME: units = [{holders = [0, 1, 2, 3], order = {{[0-4]}} : i64, receivers = [4, 5, 6, 7]
    // CHECK-SAME: %0#1
    %2 = mpmd.transfer %0#1 : (!flag0) -> !flag1
    %3 = mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1> (%1, %2) (%a: tensor<64x64xf32>, %f: tensor<4xi1>) {
      %h = stablehlo.cosine %a : tensor<64x64xf32>
      mpmd.return %h : tensor<64x64xf32>
    } : (!rows1, !flag1) -> !rows1
    // CHECK: rhino.multicast = {{.*}} edge = "backward 1 -> 0"
    %4 = mpmd.transfer %3 : (!rows1) -> !rows0
    %5 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%acc, %4) (%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) {
      %s = stablehlo.add %a, %b : tensor<64x64xf32>
      mpmd.return %s : tensor<64x64xf32>
    } : (!sums0, !rows0) -> !sums0
    return %5 : !sums0
  }
  // An argument that both stages read comes to the second one from the first; where it is kept nothing is said.
  // The result is no state: behind the step every device has it, each column from one of the two that hold it.
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: %arg2: !mpmd.mesh_tensor<"stage0", tensor<4xi1>> {rhino.argument = {index = 2 : i64}}
  // CHECK-SAME: %arg3: !mpmd.mesh_tensor<"stage1", tensor<4xi1>> {rhino.argument = {index = 2 : i64}, rhino.multicast = {
  // CHECK-SAME: edge = "argument 3", hosts = {{\[}}[0, 1, 2, 3], [4, 5, 6, 7]], makespan_s = {{.*}}, phases = [{steps = {{\[}}{{\[}}[0, 1, 0, 0, 4]]]}]
  // CHECK-SAME: units = [{holders = [0, 1, 2, 3], order = 0 : i64, receivers = [4, 5, 6, 7], sender = 0 : i64, slice = {{\[}}[0, 4]]}]}}
  // CHECK-SAME: -> (!mpmd.mesh_tensor<"stage1", {{.*}} {rhino.multicast = {
  // CHECK-SAME: edge = "results 1", hosts = {{\[}}[0, 1, 2, 3], [4, 5, 6, 7]], makespan_s = {{.*}}, phases = [{steps = {{\[}}{{\[}}[1, 0, 0, 0, 16384]]]}]
  // CHECK-SAME: {holders = [4, 6], order = 0 : i64, receivers = [0, 1, 2, 3, 5, 7], sender = {{[46]}} : i64, slice = {{\[}}[0, 64], [0, 32]]}
  // CHECK-SAME: {holders = [5, 7], order = 1 : i64, receivers = [0, 1, 2, 3, 4, 6], sender = {{[57]}} : i64, slice = {{\[}}[0, 64], [32, 64]]}
  func.func @main(%x: !half0, %z: !sums0, %k0: !flag0 {rhino.argument = {index = 2 : i64}}, %k1: !flag1 {rhino.argument = {index = 2 : i64}}) -> !last1 attributes {topology = #mpmd.topology<<"stage0": <["x"=2, "y"=2]>>, <"stage1": <["x"=2, "y"=2]>>>} {
    %r = mpmd.for (%z) {iterations = 2 : ui32} (%acc: !sums0, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%acc, %x) : (!sums0, !half0) -> !sums0
      mpmd.return %n : !sums0
    } : !sums0
    // What the loop leaves travels once a step.
    // CHECK: rhino.multicast = {{.*}} edge = "loop 0 -> 1"
    %t = mpmd.transfer %r : (!sums0) -> !last1
    %u = mpmd.fragment<mesh="stage1", origin=["update"], stage=1> (%t) (%a: tensor<64x64xf32>) {
      %h = stablehlo.negate %a : tensor<64x64xf32>
      mpmd.return %h : tensor<64x64xf32>
    } : (!last1) -> !last1
    return %u : !last1
  }
}
