// What users write about layouts becomes constraints over one mesh, without the axes that split nothing.
// RUN: rhino-opt %s --rhino-adopt-mesh --split-input-file | filecheck %s
// RUN: rhino-opt %s --rhino-adopt-mesh=annotations=ignore --split-input-file | filecheck %s --check-prefix=IGNORE

// IGNORE-NOT: sdy.

// The empty mesh of jax's PRNG keys, a mesh of one device and one that nothing uses say nothing.
// CHECK-LABEL: module @says_nothing
// CHECK-NOT: @one
// CHECK-NOT: @unused
// CHECK-NOT: sdy.sharding
// CHECK: return
module @says_nothing {
  sdy.mesh @one = <["data"=1]>
  sdy.mesh @unused = <["x"=8]>
  func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, [{"data"}]>}) -> tensor<8xf32> {
    %0 = sdy.sharding_constraint %x <@one, [{"data"}]> : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// Axes of one device go from the mesh and from what is over it.
// CHECK-LABEL: module @many_axes
// CHECK: sdy.mesh @manual = <["fsdp"=4, "tensor"=2]>
// CHECK: func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@manual, [{"fsdp"}, {?}]>})
// CHECK: sdy.sharding_constraint %arg0 <@manual, [{"fsdp"}, {"tensor"}]>
module @many_axes {
  sdy.mesh @mesh = <["data"=1, "fsdp"=4, "context"=1, "tensor"=2]>
  func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "fsdp"}, {?}]>}) -> tensor<8x16xf32> {
    %0 = sdy.sharding_constraint %x <@mesh, [{"data", "fsdp"}, {"tensor", "context"}]> : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

// Where no annotation names an axis (all types of a step under a mesh with explicit axes, say), there is none.
// CHECK-LABEL: module @replicated
// CHECK-NOT: sdy.
// CHECK: return
module @replicated {
  sdy.mesh @mesh = <["data"=8]>
  func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %0 = stablehlo.tanh %x : tensor<8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}]> : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

// A sharding on an operation or a result, a reshard and Shardy's collectives say where a value is; hints say how to propagate.
// CHECK-LABEL: module @forms
// CHECK: %[[T:.*]] = stablehlo.tanh %arg0 : tensor<8x8xf32>
// CHECK: %[[A:.*]] = sdy.sharding_constraint %[[T]] <@manual, [{"x", ?}, {}]>
// CHECK: %[[B:.*]] = sdy.sharding_constraint %[[A]] <@manual, [{}, {}]>
// CHECK: %[[C:.*]] = sdy.sharding_constraint %[[B]] <@manual, [{}, {"x"}]>
// CHECK: %[[D:.*]] = stablehlo.negate %[[C]]
// CHECK: %[[E:.*]] = sdy.sharding_constraint %[[D]] <@manual, [{"x"}, {}]>
// CHECK: return %[[E]]
module @forms {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {}]>]>} : tensor<8x8xf32>
    %1 = sdy.all_gather [{"x"}, {}] %0 out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
    %2 = sdy.reshard %1 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
    %3 = sdy.propagation_barrier %2 allowed_direction=NONE : tensor<8x8xf32>
    sdy.sharding_group %3 group_id=0 : tensor<8x8xf32>
    %4 = sdy.named_computation<"f">(%3) (%a: tensor<8x8xf32>) {
      %5 = stablehlo.negate %a : tensor<8x8xf32>
      sdy.return %5 : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %4 : tensor<8x8xf32>
  }
}

// -----

// A manual computation over axes of one device is what it does; its collectives give what they take.
// CHECK-LABEL: module @computation_of_one
// CHECK: %[[T:.*]] = stablehlo.tanh %arg0
// CHECK: return %[[T]]
module @computation_of_one {
  sdy.mesh @mesh = <["sp"=1]>
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] out_shardings=[<@mesh, [{"sp"}]>] manual_axes={"sp"} (%a: tensor<8xf32>) {
      %1 = stablehlo.tanh %a : tensor<8xf32>
      %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<0> : tensor<1x1xi64>, use_global_device_ids}> : (tensor<8xf32>) -> tensor<8xf32>
      sdy.return %2 : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// jax lowers such a computation without saying so; a permutation that sends nothing gives zeros.
// CHECK-LABEL: module @lowered_for_one
// CHECK-NOT: collective_permute
// CHECK: %[[Z:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK: return %[[Z]]
module @lowered_for_one attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<> : tensor<0x2xi64>}> : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// A second mesh whose axes the first has is the same one.
// CHECK-LABEL: module @part_of_another
// CHECK: sdy.mesh @manual = <["data"=2, "model"=4]>
// CHECK: sdy.sharding_constraint %arg0 <@manual, [{"data"}, {"model"}]>
// CHECK: sdy.sharding_constraint %{{.*}} <@manual, [{}, {"model"}]>
// CHECK: sdy.sharding_constraint %{{.*}} <@manual, [{"data"}, {}]>
module @part_of_another {
  sdy.mesh @small = <["data"=2]>
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.sharding_constraint %x <@mesh, [{"data"}, {"model"}]> : tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"model"}]> : tensor<8x8xf32>
    %2 = sdy.sharding_constraint %1 <@small, [{"data"}, {}]> : tensor<8x8xf32>
    return %2 : tensor<8x8xf32>
  }
}

// -----

// Tokens are sharded as scalars are: over no dimension.
// CHECK-LABEL: module @token
// CHECK: func.func @main(%{{.*}}: tensor<8xf32>, %{{.*}}: !stablehlo.token) -> !stablehlo.token
module @token {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<8xf32>, %t: !stablehlo.token {sdy.sharding = #sdy.sharding<@mesh, []>}) -> !stablehlo.token {
    %0 = stablehlo.after_all %t, %t : !stablehlo.token
    return %0 : !stablehlo.token
  }
}
