// rhino.cluster: what the module was planned for. Further keys may describe it.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: module attributes {rhino.cluster = {device = "h100", devices_per_host = 8 : i64, hosts = 1 : i64, name = "dgx-h100:1", note = "rack 4"}}
module attributes {rhino.cluster = {name = "dgx-h100:1", hosts = 1 : i64, devices_per_host = 8 : i64, device = "h100", note = "rack 4"}} {
}
