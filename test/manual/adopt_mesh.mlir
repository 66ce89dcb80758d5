// RUN: rhino-opt %s --rhino-adopt-mesh | filecheck %s

// The mesh of manual computations stands aside under a name of its own, also in the constraints over it.

// CHECK-NOT: @mesh
// CHECK: sdy.mesh @manual = <["data"=2, "sp"=4]>
// CHECK-LABEL: func.func @main
// CHECK: sdy.manual_computation(%arg0) in_shardings=[<@manual, [{"sp"}]>] out_shardings=[<@manual, [{"sp"}]>] manual_axes={"sp"}
// The question for a device's number is asked in place, and hints on axes that are left to XLA are gone.
// CHECK-NEXT: stablehlo.partition_id
// CHECK-NEXT: stablehlo.tanh
// CHECK-NEXT: sdy.return
// CHECK: sdy.sharding_constraint {{.*}} <@manual, [{"data"}]>
sdy.mesh @mesh = <["data"=2, "sp"=4]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    %2 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"data"} () {
      %5 = stablehlo.partition_id : tensor<ui32>
      sdy.return %5 : tensor<ui32>
    } : () -> tensor<ui32>
    %3 = stablehlo.tanh %a : tensor<2xf32>
    %4 = sdy.sharding_constraint %3 <@mesh, [{?}]> : tensor<2xf32>
    sdy.return %4 : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}]> : tensor<8xf32>
  return %1 : tensor<8xf32>
}
