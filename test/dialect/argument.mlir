// rhino.argument: the argument or result of the original step that one of a step in fragments is, or is rows of.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

!rows = !mpmd.mesh_tensor<"stage0", tensor<2x8xf32>>

// CHECK: func.func @main(%{{.*}}: !mpmd.mesh_tensor<"stage0", tensor<2x8xf32>> {rhino.argument = {index = 3 : i64, slice = {{\[}}[4, 6]]}}
// CHECK-SAME: {rhino.argument = {index = 0 : i64}})
func.func @main(%a: !rows {rhino.argument = {index = 3 : i64, slice = [[4 : i64, 6 : i64]]}})
    -> (!rows {rhino.argument = {index = 0 : i64}}) attributes {topology = #mpmd.topology<<"stage0": <["x"=1]>>>} {
  return %a : !rows
}
