// RUN: rhino-opt %s --rhino-adopt-mesh --rhino-plan-sharding='topology=dgx-h100:1 mesh=2x4' | filecheck %s
// RUN: rhino-opt %s --rhino-adopt-mesh --rhino-plan-sharding='topology=dgx-h100:1 mesh=4x2' | filecheck %s --check-prefix=INNER

// One mesh, which has the axes of the manual computation and others beside them. Along what its body passes through it
// works on a device's part over the free axis, too, and is manual on all of them.

// CHECK: sdy.mesh @mesh = <["x"=2, "sp"=4]>
// CHECK-NOT: @manual
// CHECK: sdy.manual_computation(%{{.*}}) in_shardings=[<@mesh, [{"x"}, {"sp"}, {}]>] out_shardings=[<@mesh, [{"x"}, {"sp"}, {}]>] manual_axes={"x", "sp"} (%[[PART:.*]]: tensor<32x1024x1024xf32>)
// A device's number in the mesh of the computation.
// CHECK-NEXT: [[PLACE:%.*]] = stablehlo.partition_id
// CHECK-NEXT: [[FOUR:%.*]] = stablehlo.constant dense<4>
// CHECK-NEXT: stablehlo.remainder [[PLACE]], [[FOUR]]
// CHECK: stablehlo.broadcast_in_dim {{.*}} (tensor<f32>) -> tensor<32x1024x1024xf32>
// CHECK: "stablehlo.collective_permute"(%[[PART]]) <{{.*}}source_target_pairs = dense<{{\[\[}}0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]]>
// CHECK: "stablehlo.all_reduce"(%{{.*}}) <{{.*}}replica_groups = dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7]]>

// Inside the axes that it takes there is another one: its devices are every second one.
// INNER: sdy.mesh @mesh = <["sp"=4, "x"=2]>
// INNER: stablehlo.divide
// INNER: source_target_pairs = dense<{{\[\[}}0, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7], [6, 0], [7, 1]]>
// INNER: replica_groups = dense<{{\[\[}}0, 2, 4, 6], [1, 3, 5, 7]]>

sdy.mesh @mesh = <["sp"=4]>
func.func @main(%x: tensor<64x4096x1024xf32> {rhino.role = "batch"}, %w: tensor<1024x1024xf32> {rhino.role = "param"}) -> tensor<64x4096x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<64x4096x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x4096x1024xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{}, {"sp"}, {}]>] out_shardings=[<@mesh, [{}, {"sp"}, {}]>] manual_axes={"sp"} (%a: tensor<64x1024x1024xf32>) {
    %2 = stablehlo.partition_id : tensor<ui32>
    %3 = stablehlo.convert %2 : (tensor<ui32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<64x1024x1024xf32>
    %5 = "stablehlo.collective_permute"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<64x1024x1024xf32>) -> tensor<64x1024x1024xf32>
    %6 = "stablehlo.all_reduce"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%b: tensor<f32>, %c: tensor<f32>):
      %8 = stablehlo.add %b, %c : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<64x1024x1024xf32>) -> tensor<64x1024x1024xf32>
    %7 = stablehlo.add %6, %4 : tensor<64x1024x1024xf32>
    sdy.return %7 : tensor<64x1024x1024xf32>
  } : (tensor<64x4096x1024xf32>) -> tensor<64x4096x1024xf32>
  return %1 : tensor<64x4096x1024xf32>
}
