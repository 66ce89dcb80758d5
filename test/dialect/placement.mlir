// rhino.placement: the devices of the cluster that each mesh stands for, for meshes of sdy and of mpmd topologies.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: rhino.placement = {m0 = [0, 1, 2, 3], m1 = [6, 7]}
module attributes {rhino.cluster = {name = "dgx-h100:1", hosts = 1 : i64, devices_per_host = 8 : i64, device = "h100"},
                   rhino.placement = {m0 = [0, 1, 2, 3], m1 = [6, 7]}} {
  func.func @main() attributes {topology = #mpmd.topology<<"m0": <["x"=2, "y"=2]>>, <"m1": <["x"=2]>>>} {
    return
  }
}
