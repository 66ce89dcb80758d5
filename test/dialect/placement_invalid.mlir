// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// Meshes share no device.
// expected-error @+1 {{rhino.placement places device 3 in mesh 'm0' and mesh 'm1'}}
module attributes {rhino.placement = {m0 = [0, 1, 2, 3], m1 = [3, 4]}} {
  func.func @main() attributes {topology = #mpmd.topology<<"m0": <["x"=4]>>, <"m1": <["x"=2]>>>} {
    return
  }
}

// -----

// As many devices as the mesh has, each once.
// expected-error @+2 {{rhino.placement.mesh lists 2 devices, but the mesh has 4}}
// expected-error @+1 {{rhino.placement.mesh lists device 1 twice}}
module attributes {rhino.placement = {mesh = [1, 1]}} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
}

// -----

// expected-error @+1 {{rhino.placement names mesh 'nesh', which the module does not define; it defines mesh}}
module attributes {rhino.placement = {nesh = [0]}} {
  sdy.mesh @mesh = <["x"=1]>
}

// -----

// The devices exist.
// expected-error @+1 {{rhino.placement.mesh lists device 8, but the cluster has 8}}
module attributes {rhino.cluster = {name = "dgx-h100:1", hosts = 1 : i64, devices_per_host = 8 : i64, device = "h100"},
                   rhino.placement = {mesh = [7, 8]}} {
  sdy.mesh @mesh = <["x"=2]>
}

// -----

// expected-error @+1 {{rhino.placement.mesh[0] must be at least 0, got -1}}
module attributes {rhino.placement = {mesh = [-1]}} {
  sdy.mesh @mesh = <["x"=1]>
}
