// What rhino-lower-transfers refuses.
// RUN: rhino-opt %s --rhino-lower-transfers --verify-diagnostics --split-input-file
// RUN: not rhino-opt %S/lower_transfers.mlir --rhino-lower-transfers=topology=p3.8xlarge:1 2>&1 | filecheck %s --check-prefix=SMALL
// RUN: not rhino-opt %S/lower_transfers.mlir --rhino-lower-transfers=strategy=pigeon 2>&1 | filecheck %s --check-prefix=STRATEGY
// RUN: not rhino-opt %S/lower_transfers.mlir --rhino-lower-transfers=scheduler=post 2>&1 | filecheck %s --check-prefix=SCHEDULER
// RUN: not rhino-opt %S/lower_transfers.mlir --rhino-lower-transfers=topology=nowhere 2>&1 | filecheck %s --check-prefix=NOWHERE
// RUN: not rhino-opt %S/lower_transfers.mlir --rhino-lower-transfers --rhino-replicate-fragments=count=2 2>&1 | filecheck %s --check-prefix=LATER

// SMALL: error: device 4 is not one of the 4 of cluster p3.8xlarge:1
// STRATEGY: error: 'rhino-lower-transfers': option 'strategy' is 'pigeon' but must be one of send-recv
// SCHEDULER: error: 'rhino-lower-transfers': option 'scheduler' is 'post' but must be one of naive
// NOWHERE: error: {{.*}}nowhere
// Units are those of the devices: replicas that come later are not in them.
// LATER: error: rhino.multicast{{.*}}

// expected-error @+2 {{@main is not in fragments}}
// expected-note @+1 {{rhino-form-fragments makes it}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
// expected-error @+2 {{rhino.placement does not say where mesh 'm0' is}}
// expected-note @+1 {{rhino-form-fragments makes it}}
module {
  func.func private @microbatch(%acc: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["forward"], stage=0> (%acc) (%a: tensor<4xf32>) {
      mpmd.return %a : tensor<4xf32>
    } : (!m0) -> !m0
    return %0 : !m0
  }
  func.func @main(%z: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %r = mpmd.for (%z) {iterations = 2 : ui32} (%acc: !m0, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%acc) : (!m0) -> !m0
      mpmd.return %n : !m0
    } : !m0
    return %r : !m0
  }
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
module attributes {rhino.placement = {m0 = [0, 1]}} {
  func.func private @microbatch(%acc: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["forward"], stage=0> (%acc) (%a: tensor<4xf32>) {
      mpmd.return %a : tensor<4xf32>
    } : (!m0) -> !m0
    return %0 : !m0
  }
  // expected-error @+2 {{transfers are planned for a cluster, and the module has no rhino.cluster}}
  // expected-note @+1 {{give topology=dgx-h100:1}}
  func.func @main(%z: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %r = mpmd.for (%z) {iterations = 2 : ui32} (%acc: !m0, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%acc) : (!m0) -> !m0
      mpmd.return %n : !m0
    } : !m0
    return %r : !m0
  }
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
module attributes {
  rhino.cluster = {device = "v100", devices_per_host = 2 : i64, hosts = 1 : i64, name = "p3.8xlarge:1"},
  rhino.placement = {m0 = [0, 1]}
} {
  func.func private @microbatch(%acc: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["forward"], stage=0> (%acc) (%a: tensor<4xf32>) {
      mpmd.return %a : tensor<4xf32>
    } : (!m0) -> !m0
    return %0 : !m0
  }
  // The name says one thing, the numbers another.
  // expected-error @+2 {{rhino.cluster has 1 hosts of 2 devices, but 'p3.8xlarge:1' has 1 of 4}}
  // expected-note @+1 {{give the cluster as topology}}
  func.func @main(%z: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %r = mpmd.for (%z) {iterations = 2 : ui32} (%acc: !m0, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%acc) : (!m0) -> !m0
      mpmd.return %n : !m0
    } : !m0
    return %r : !m0
  }
}

// -----

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
module attributes {
  rhino.cluster = {device = "cpu", devices_per_host = 2 : i64, hosts = 1 : i64, name = "mine:1"},
  rhino.placement = {m0 = [0, 1]}
} {
  func.func private @microbatch(%acc: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["forward"], stage=0> (%acc) (%a: tensor<4xf32>) {
      mpmd.return %a : tensor<4xf32>
    } : (!m0) -> !m0
    return %0 : !m0
  }
  // Of a cluster that a file described only the name is left.
  // expected-error @+2 {{rhino.cluster: }}
  // expected-note @+1 {{give its YAML file as topology}}
  func.func @main(%z: !m0) -> !m0 attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
    %r = mpmd.for (%z) {iterations = 2 : ui32} (%acc: !m0, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%acc) : (!m0) -> !m0
      mpmd.return %n : !m0
    } : !m0
    return %r : !m0
  }
}
