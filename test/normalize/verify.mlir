// rhino-verify changes nothing and says nothing about a module that is right.
// RUN: rhino-opt %s -o %t.plain
// RUN: rhino-opt %s --rhino-verify -o %t.verified 2> %t.err
// RUN: diff %t.plain %t.verified
// RUN: filecheck %s --input-file %t.err --check-prefix=SILENT --allow-empty

// SILENT-NOT: {{.}}
module attributes {rhino.cluster = {name = "c:2", hosts = 2 : i64, devices_per_host = 2 : i64, device = "cpu"},
                   rhino.placement = {m0 = [0, 1], m1 = [2, 3]}} {
  func.func @main(%x: !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {?}]>>)
      -> !mpmd.mesh_tensor<"m1", tensor<4x8xf32>> attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
    %0 = mpmd.transfer %x : (!mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {?}]>>)
      -> !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
    return %0 : !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
  }
}
