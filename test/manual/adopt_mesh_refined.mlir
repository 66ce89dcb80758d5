// Manual computations over several meshes are over the finest: an axis of another is one of its axes, or several in a row.
// RUN: rhino-opt %s --rhino-adopt-mesh | filecheck %s

// CHECK: sdy.mesh @manual = <["data"=2, "sp"=4]>
// CHECK-LABEL: func.func @main
sdy.mesh @a = <["all"=8]>
sdy.mesh @b = <["data"=2, "sp"=4]>
sdy.mesh @c = <["tp"=4]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // Its groups number the same eight devices.
  // CHECK: sdy.manual_computation(%{{.*}}) in_shardings=[<@manual, [{"data", "sp"}]>] out_shardings=[<@manual, [{"data", "sp"}]>] manual_axes={"data", "sp"}
  // CHECK: replica_groups = dense<{{\[}}[0, 1, 2, 3, 4, 5, 6, 7]]>
  %0 = sdy.manual_computation(%x) in_shardings=[<@a, [{"all"}]>] out_shardings=[<@a, [{"all"}]>] manual_axes={"all"} (%a: tensor<1xf32>) {
    %s = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %sum = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<1xf32>) -> tensor<1xf32>
    sdy.return %s : tensor<1xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: sdy.sharding_constraint %{{.*}} <@manual, [{"data", "sp"}]>
  %c = sdy.sharding_constraint %0 <@a, [{"all"}]> : tensor<8xf32>
  // CHECK: manual_axes={"sp"}
  %1 = sdy.manual_computation(%c) in_shardings=[<@b, [{"sp"}]>] out_shardings=[<@b, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<2xf32>) {
    sdy.return %a : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  // Four devices are those along the second axis, once for each place on the first; a device's number is that among them.
  // CHECK: manual_axes={"sp"}
  // CHECK: %[[ID:.*]] = stablehlo.partition_id
  // CHECK: stablehlo.remainder %[[ID]],
  // CHECK: replica_groups = dense<{{\[}}[0, 1, 2, 3], [4, 5, 6, 7]]>
  %2 = sdy.manual_computation(%1) in_shardings=[<@c, [{"tp"}]>] out_shardings=[<@c, [{"tp"}]>] manual_axes={"tp"} (%a: tensor<2xf32>) {
    %id = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %id : (tensor<ui32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %p = stablehlo.multiply %a, %b : tensor<2xf32>
    %s = "stablehlo.all_reduce"(%p) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %sum = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<2xf32>) -> tensor<2xf32>
    sdy.return %s : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
