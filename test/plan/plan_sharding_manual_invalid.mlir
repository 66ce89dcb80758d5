// RUN: rhino-opt %s --rhino-adopt-mesh --rhino-plan-sharding='topology=dgx-h100:1' --split-input-file --verify-diagnostics
// RUN: not rhino-opt %S/plan_sharding_manual.mlir --rhino-adopt-mesh --rhino-plan-sharding='topology=dgx-h100:1 mesh=8' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not rhino-opt %S/plan_sharding_manual.mlir --rhino-adopt-mesh --rhino-plan-pipeline='topology=dgx-h100:1 stages=8' 2>&1 | filecheck %s --check-prefix=STAGES

// MESH: error: mesh 8 has no place for sp=4, on which the step's manual computations are
// MESH: give a mesh with these sizes next to each other
// STAGES: error: no pipeline of 8 stages on the 8 devices of cluster dgx-h100:1 has stages that hold the mesh sp=4
// STAGES: ask for stages of 4 devices or a multiple

sdy.mesh @mesh = <["sp"=3]>
// expected-error @+2 {{the step's manual computations are over a mesh sp=3 of 3 devices, which do not divide the 8 of cluster dgx-h100:1}}
// expected-note @+1 {{write the step for a mesh whose size divides the number of devices}}
func.func @main(%x: tensor<12xf32>) -> tensor<12xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<12xf32>) -> tensor<12xf32>
  return %0 : tensor<12xf32>
}

// -----

sdy.mesh @mesh = <["sp"=16]>
// expected-error @+2 {{over a mesh sp=16 of 16 devices, which do not divide the 8 of cluster dgx-h100:1}}
// expected-note @+1 {{write the step for a mesh}}
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<1xf32>) {
    sdy.return %a : tensor<1xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

sdy.mesh @mesh = <["sp"=4]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    // expected-error @+2 {{'stablehlo.collective_permute' names device 7 of a mesh of 4}}
    // expected-note @+1 {{number devices from 0}}
    %1 = "stablehlo.collective_permute"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 7]]> : tensor<1x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
    sdy.return %1 : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Annotations over another mesh than the manual computations', which stay.
sdy.mesh @mesh = <["x"=8]>
sdy.mesh @other = <["sp"=4]>
// expected-warning @+2 {{argument arg0 is not kept: it is over a mesh x=8, and the plan's has sp=4}}
// expected-note @+1 {{write all for one mesh that has all axes}}
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@other, [{"sp"}]>] out_shardings=[<@other, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    sdy.return %a : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
