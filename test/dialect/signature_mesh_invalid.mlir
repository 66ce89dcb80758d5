// mpmd's own verifier accepts a mesh in a signature that the topology does not have, or a function without a topology.
// RUN: rhino-opt %s
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

// expected-error @+4 {{argument 0 is on mesh 'm9', which is not in the topology}}
// expected-note @+3 {{it has m0, m1}}
// expected-error @+2 {{result 0 is on mesh 'm8', which is not in the topology}}
// expected-note @+1 {{it has m0, m1}}
func.func private @unknown(!mpmd.mesh_tensor<"m9", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m8", tensor<4xf32>> attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>}

// expected-error @+2 {{argument 0 is on mesh 'm0', which is not in the topology}}
// expected-note @+1 {{the function has no topology}}
func.func private @without(!mpmd.mesh_tensor<"m0", tensor<4xf32>>)
