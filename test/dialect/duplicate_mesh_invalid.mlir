// mpmd's own verifier accepts two meshes of one name.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

// expected-error @+2 {{topology has two meshes named 'm0'}}
// expected-note @+1 {{give each mesh its own name}}
func.func @main() attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m0": <["x"=4]>>>} {
  return
}
