// Text -> module -> text -> module -> text: the second text equals the first, for every dialect a plan uses.
// RUN: rhino-opt %s -o %t.once
// RUN: rhino-opt %t.once -o %t.twice
// RUN: diff %t.once %t.twice
// RUN: filecheck %s --input-file %t.twice

// CHECK: sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @sharded
// CHECK-SAME: {rhino.role = "param", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
func.func @sharded(%w: tensor<8x4xf32> {rhino.role = "param", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  // CHECK: stablehlo.tanh
  %0 = stablehlo.tanh %w : tensor<8x4xf32>
  // CHECK: chlo.erf
  %1 = chlo.erf %0 : tensor<8x4xf32> -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @staged
// CHECK-SAME: topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>
func.func @staged(%x: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>} {
  // CHECK: mpmd.fragment<mesh="m0", origin=["stage0"], stage=0>
  %0 = mpmd.fragment<mesh="m0", origin=["stage0"], stage=0> (%x) (%a: tensor<4xf32>) {
    %2 = stablehlo.negate %a : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<4xf32>>
  // CHECK: mpmd.transfer
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
  return %1 : !mpmd.mesh_tensor<"m1", tensor<4xf32>>
}
