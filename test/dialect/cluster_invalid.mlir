// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+2 {{rhino.cluster.hosts must be at least 1, got 0}}
// expected-error @+1 {{rhino.cluster has no key 'device'}}
module attributes {rhino.cluster = {name = "dgx-h100:0", hosts = 0 : i64, devices_per_host = 8 : i64}} {
}

// -----

// expected-error @+1 {{rhino.cluster.devices_per_host must be an integer, got 8.0}}
module attributes {rhino.cluster = {name = "c", hosts = 1 : i64, devices_per_host = 8.0 : f64, device = "h100"}} {
}

// -----

module {
  // expected-error @+1 {{rhino.cluster belongs on the module, not on a function}}
  func.func @main() attributes {rhino.cluster = {}} {
    return
  }
}
