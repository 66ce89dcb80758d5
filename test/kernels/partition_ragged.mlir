// Ragged products: each device finds out which of its rows are in which of its groups.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s --check-prefix=RULE
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// Rows (j) and groups (m) are told apart by their place; what is summed over (k) is not. Sizes of groups are whole. XLA
// computes all rows for each group, from two copies of them with the other groups' set to zero.
// RULE-LABEL: module @rows
// RULE: flops = 6144 : i64, held = [{bytes = 4096 : i64, factors = [0, 1, 2]}], name = "ragged-dot", ordered = [0, 2], rate = "tensor", type = "f32"
// RULE-SAME: <([i, j], [k, j, l], [m])->([i, l]) {i=16, j=8, k=4, l=6, m=4} reduction={j, k} need_replication={m}, custom>

// The device's first row comes in as the first of its part of an iota. Ends of groups, less that, cut off at 0 and 8.
// CHECK-LABEL: module @rows
// CHECK: %[[P:.*]] = stablehlo.iota dim = 0 : tensor<16xi32>
// CHECK: sdy.manual_computation(%arg0, %arg1, %arg2, %[[P]])
// CHECK-SAME: in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}, {}]>, <@mesh, [{}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
// CHECK-SAME: (%[[L:.*]]: tensor<8x8xf32>, %[[R:.*]]: tensor<4x8x6xf32>, %[[S:.*]]: tensor<4xi32>, %[[I:.*]]: tensor<8xi32>)
// CHECK: %[[B:.*]] = stablehlo.reshape %{{.*}} : (tensor<1xi32>) -> tensor<i32>
// CHECK: %[[E:.*]] = "stablehlo.reduce_window"(%[[S]]
// CHECK: %[[F:.*]] = stablehlo.subtract %[[E]], %[[S]]
// CHECK: stablehlo.clamp
// CHECK: %[[END:.*]] = stablehlo.clamp
// CHECK: %[[LOCAL:.*]] = stablehlo.subtract %[[END]]
// CHECK: "chlo.ragged_dot"(%[[L]], %[[R]], %[[LOCAL]])
// CHECK-SAME: flops = 3072 : i64
// CHECK-SAME: (tensor<8x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>) -> tensor<8x6xf32>
module @rows {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<4x8x6xf32>, %n: tensor<4xi32>) -> tensor<16x6xf32> {
    %0 = "chlo.ragged_dot"(%x, %y, %n) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>) -> tensor<16x6xf32>
    return %0 : tensor<16x6xf32>
  }
}

// -----

// Each device has the matrices of two groups: it computes their rows, the others are zero, and the parts are summed.
// CHECK-LABEL: module @groups
// CHECK: sdy.manual_computation(
// CHECK-SAME: in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"x"}, {}, {}]>, <@mesh, [{}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}, {}]>]
// CHECK: stablehlo.dynamic_slice {{.*}} sizes = [1] : (tensor<4xi32>, tensor<i32>) -> tensor<1xi32>
// CHECK: stablehlo.dynamic_slice {{.*}} sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>
// CHECK: %[[P:.*]] = "chlo.ragged_dot"
// CHECK-SAME: (tensor<16x8xf32>, tensor<2x8x6xf32>, tensor<2xi32>) -> tensor<16x6xf32>
// CHECK: %[[G:.*]] = stablehlo.compare GE
// CHECK: stablehlo.select %[[G]], %[[P]]
// CHECK: stablehlo.reduce
module @groups {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<16x8xf32>, %y: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}, %n: tensor<4xi32>) -> tensor<16x6xf32> {
    %0 = "chlo.ragged_dot"(%x, %y, %n) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>) -> tensor<16x6xf32>
    return %0 : tensor<16x6xf32>
  }
}

// -----

// Gradients of the matrices: a device makes those of its groups (i), from which rows of other groups are left out, and
// of its rows parts of all sums.
// RULE-LABEL: module @gradients
// RULE: held = [{bytes = 2048 : i64, factors = [0, 1, 4]}, {bytes = 1536 : i64, factors = [0, 2, 4]}]
// RULE-SAME: ordered = [0, 4]
// RULE-SAME: <([i, j], [i, k], [l])->([m, j, k])
// CHECK-LABEL: module @gradients
// CHECK: out_shardings=[<@mesh, [{"y"}, {"x"}, {}, {}]>]
// CHECK: stablehlo.select
// CHECK: stablehlo.select
// CHECK: "chlo.ragged_dot"
// CHECK-SAME: (tensor<8x8xf32>, tensor<8x6xf32>, tensor<2xi32>) -> tensor<2x8x6xf32>
module @gradients {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %y: tensor<16x6xf32>, %n: tensor<4xi32>) -> tensor<4x8x6xf32> {
    %0 = "chlo.ragged_dot"(%x, %y, %n) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}, {}]>]>} : (tensor<16x8xf32>, tensor<16x6xf32>, tensor<4xi32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
}
