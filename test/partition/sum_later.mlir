// Sums over devices of gradients that a loop stacks are a trip later; the last one is behind the loop.
// RUN: rhino-opt %s --rhino-sum-later | filecheck %s
// RUN: rhino-opt %s --rhino-sum-later=axes=y | filecheck %s --check-prefix=ONLY

sdy.mesh @mesh = <["x"=2, "y"=4]>

// A dot: the devices along both axes are batches of it. What scatters the gradient, y, is summed over first, and what it
// scatters lies outermost in what the loop hands on: the operands change places.
// CHECK-LABEL: func.func @dot
// CHECK: %[[LOOP:.*]]:4 = stablehlo.while(%[[I:.*]] = {{.*}}, %[[STACK:.*]] = {{.*}}, %[[BEFORE:.*]] = {{.*}}, %[[J:.*]] = {{.*}})
// CHECK: do {
// CHECK: %[[A:.*]] = stablehlo.reshape %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}, {}, {}]>]>} : (tensor<64x6xf32>) -> tensor<2x4x8x6xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}, {}, {}]>]>} : (tensor<64x8xf32>) -> tensor<2x4x8x8xf32>
// CHECK: %[[PARTS:.*]] = stablehlo.dot_general %[[B]], %[[A]], batching_dims = [1, 0] x [1, 0], contracting_dims = [2] x [2], precision = [DEFAULT, HIGHEST]
// CHECK-SAME: [{"y"}, {"x"}, {}, {}]
// CHECK-SAME: -> tensor<4x2x8x6xf32>
// CHECK: %[[Y:.*]] = stablehlo.reduce(%[[BEFORE]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK-SAME: [{"x"}, {"y"}, {}]
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[Y]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK-SAME: [{"y"}, {}]
// CHECK: %[[G:.*]] = stablehlo.transpose %[[SUM]], dims = [1, 0]
// CHECK-SAME: [{}, {"y"}]
// CHECK-SAME: -> tensor<6x8xf32>
// CHECK: %[[ROW:.*]] = stablehlo.reshape %[[G]]
// CHECK: %[[NEXT:.*]] = stablehlo.dynamic_update_slice %[[STACK]], %[[ROW]], %[[J]]
// CHECK: stablehlo.return %{{.*}}, %[[NEXT]], %[[PARTS]], %[[I]]
// CHECK: stablehlo.reduce(%[[LOOP]]#2
// CHECK: %[[TURNED:.*]] = stablehlo.transpose
// CHECK: %[[LAST:.*]] = stablehlo.reshape %[[TURNED]]
// CHECK: %[[ALL:.*]] = stablehlo.dynamic_update_slice %[[LOOP]]#1, %[[LAST]], %[[LOOP]]#3
// CHECK: return %[[ALL]]
// ONLY-LABEL: func.func @dot
// ONLY: batching_dims = [1, 0] x [1, 0]
func.func @dot(%a: tensor<64x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %b: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<3x6x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x6x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %stack = %empty) : tensor<i32>, tensor<3x6x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}, {"y"}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a0 = sdy.sharding_constraint %a <@mesh, [{"x", "y"}, {}]> : tensor<64x6xf32>
    %b0 = sdy.sharding_constraint %b <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %g = stablehlo.dot_general %a0, %b0, contracting_dims = [0] x [0], precision = [HIGHEST, DEFAULT] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<64x6xf32>, tensor<64x8xf32>) -> tensor<6x8xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"y"}]>]>} : (tensor<6x8xf32>) -> tensor<1x6x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"y"}]>]>} : (tensor<3x6x8xf32>, tensor<1x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x6x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<3x6x8xf32>
  }
  return %r#1 : tensor<3x6x8xf32>
}

// Its algorithm takes one operand otherwise than the other: they stay where they are.
// CHECK-LABEL: func.func @told_apart
// CHECK: do {
// CHECK: stablehlo.dot_general {{.*}}lhs_precision_type = f8E4M3FN, rhs_precision_type = f8E5M2
// CHECK-SAME: -> tensor<4x2x6x8xf32>
// CHECK-NOT: stablehlo.transpose
// CHECK: return
func.func @told_apart(%a: tensor<64x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %b: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<3x6x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x6x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %stack = %empty) : tensor<i32>, tensor<3x6x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}, {"y"}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a0 = sdy.sharding_constraint %a <@mesh, [{"x", "y"}, {}]> : tensor<64x6xf32>
    %b0 = sdy.sharding_constraint %b <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %g = stablehlo.dot_general %a0, %b0, contracting_dims = [0] x [0], algorithm = <lhs_precision_type = f8E4M3FN, rhs_precision_type = f8E5M2, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<64x6xf32>, tensor<64x8xf32>) -> tensor<6x8xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"y"}]>]>} : (tensor<6x8xf32>) -> tensor<1x6x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"y"}]>]>} : (tensor<3x6x8xf32>, tensor<1x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x6x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<3x6x8xf32>
  }
  return %r#1 : tensor<3x6x8xf32>
}

// What scatters the gradient of this dot divides the first dimension of it: that lies outermost as it is.
// CHECK-LABEL: func.func @outermost
// CHECK: do {
// CHECK: %[[A:.*]] = stablehlo.reshape %{{.*}} : (tensor<64x4xf32>) -> tensor<2x4x8x4xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %{{.*}} : (tensor<64x8xf32>) -> tensor<2x4x8x8xf32>
// CHECK: stablehlo.dot_general %[[A]], %[[B]], batching_dims = [1, 0] x [1, 0]
// CHECK-SAME: -> tensor<4x2x4x8xf32>
// CHECK-NOT: stablehlo.transpose
// CHECK: return
func.func @outermost(%a: tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %b: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<3x4x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %stack = %empty) : tensor<i32>, tensor<3x4x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"y"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a0 = sdy.sharding_constraint %a <@mesh, [{"x", "y"}, {}]> : tensor<64x4xf32>
    %b0 = sdy.sharding_constraint %b <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %g = stablehlo.dot_general %a0, %b0, contracting_dims = [0] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} : (tensor<64x4xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}, {}]>]>} : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}, {}]>]>} : (tensor<3x4x8xf32>, tensor<1x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<3x4x8xf32>
  }
  return %r#1 : tensor<3x4x8xf32>
}

// Both axes scatter one dimension of this gradient: one sum goes over both.
// CHECK-LABEL: func.func @scattered_twice
// CHECK: do {
// CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2]
// CHECK-SAME: [{"x"}, {"y"}, {}, {}]
// CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0, 1]
// CHECK-SAME: [{"x", "y"}, {}]
// CHECK-NOT: stablehlo.reduce
// CHECK: stablehlo.return
func.func @scattered_twice(%a: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %b: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<3x16x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x16x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %stack = %empty) : tensor<i32>, tensor<3x16x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"x", "y"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a0 = sdy.sharding_constraint %a <@mesh, [{"x", "y"}, {}]> : tensor<64x16xf32>
    %b0 = sdy.sharding_constraint %b <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %g = stablehlo.dot_general %a0, %b0, contracting_dims = [0] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x16xf32>, tensor<64x8xf32>) -> tensor<16x8xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x", "y"}, {}]>]>} : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x", "y"}, {}]>]>} : (tensor<3x16x8xf32>, tensor<1x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x16x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<3x16x8xf32>
  }
  return %r#1 : tensor<3x16x8xf32>
}

// Two dimensions are summed, each split by an axis: both are batches, and one sum goes over both.
// CHECK-LABEL: func.func @two_dimensions
// CHECK: do {
// CHECK: %[[PARTS:.*]] = stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0, 2] x [0, 2], contracting_dims = [1, 3] x [1, 3]
// CHECK-SAME: [{"x"}, {"y"}, {}, {}]
// CHECK-SAME: -> tensor<2x4x6x8xf32>
// CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0, 1]
// CHECK-SAME: [{}, {}]
// CHECK-SAME: -> tensor<6x8xf32>
func.func @two_dimensions(%a: tensor<16x64x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>}, %b: tensor<16x64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>}) -> tensor<3x6x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x6x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %stack = %empty) : tensor<i32>, tensor<3x6x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a0 = sdy.sharding_constraint %a <@mesh, [{"x"}, {"y"}, {}]> : tensor<16x64x6xf32>
    %b0 = sdy.sharding_constraint %b <@mesh, [{"x"}, {"y"}, {}]> : tensor<16x64x8xf32>
    %g = stablehlo.dot_general %a0, %b0, contracting_dims = [0, 1] x [0, 1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<16x64x6xf32>, tensor<16x64x8xf32>) -> tensor<6x8xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {}]>]>} : (tensor<6x8xf32>) -> tensor<1x6x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {}]>]>} : (tensor<3x6x8xf32>, tensor<1x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x6x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<3x6x8xf32>
  }
  return %r#1 : tensor<3x6x8xf32>
}

// What is carried, and added up in the trip: a bias's gradient. What is only summed over devices is in no later trip.
// CHECK-LABEL: func.func @carried
// CHECK: do {
// CHECK: %[[PARTS:.*]] = stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK-SAME: [{"x"}, {}]
// CHECK-SAME: -> tensor<2x6xf32>
// CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK-SAME: -> tensor<6xf32>
// CHECK-LABEL: func.func @carried_parts
// CHECK: stablehlo.while
// CHECK-SAME: tensor<2x6xf32>
// CHECK-NOT: stablehlo.reshape {{.*}} -> tensor<2x1x6xf32>
// CHECK: return
func.func @carried(%dy: tensor<64x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<3x6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x6xf32>
  %r:3 = stablehlo.while(%i = %zero, %stack = %empty, %d = %dy) : tensor<i32>, tensor<3x6xf32>, tensor<64x6xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}]>, <@mesh, [{"x"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %g = stablehlo.reduce(%d init: %f) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<64x6xf32>, tensor<f32>) -> tensor<6xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<6xf32>) -> tensor<1x6xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<3x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<3x6xf32>
    %e = stablehlo.tanh %d {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<64x6xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %e : tensor<i32>, tensor<3x6xf32>, tensor<64x6xf32>
  }
  return %r#1 : tensor<3x6xf32>
}

func.func @carried_parts(%dy: tensor<2x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<3x6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x6xf32>
  %r:3 = stablehlo.while(%i = %zero, %stack = %empty, %d = %dy) : tensor<i32>, tensor<3x6xf32>, tensor<2x6xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}]>, <@mesh, [{"x"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %g = stablehlo.reduce(%d init: %f) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<2x6xf32>, tensor<f32>) -> tensor<6xf32>
    %row = stablehlo.reshape %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<6xf32>) -> tensor<1x6xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<3x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<3x6xf32>
    %e = stablehlo.tanh %d {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<2x6xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %e : tensor<i32>, tensor<3x6xf32>, tensor<2x6xf32>
  }
  return %r#1 : tensor<3x6xf32>
}

// A reduction, here by the axis that is inside of the other; sums of one element go on the way, with what they start from.
// CHECK-LABEL: func.func @reduction
// CHECK: do {
// CHECK: %[[T:.*]] = stablehlo.tanh
// CHECK: %[[P:.*]] = stablehlo.reshape %[[T]] {{.*}} -> tensor<4x2x8x8xf32>
// CHECK: %[[PARTS:.*]] = stablehlo.reduce(%[[P]] init: %{{.*}}) applies stablehlo.add across dimensions = [2]
// CHECK-SAME: [{"y"}, {"x"}, {}]
// CHECK: stablehlo.return %{{.*}}, %{{.*}}, %{{.*}}, %[[PARTS]], %{{.*}}
// CHECK: stablehlo.reduce(%{{.*}}#3
// CHECK: %[[START:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK: stablehlo.reduce({{.*}} init: %[[START]])
// CHECK: stablehlo.dynamic_update_slice
func.func @reduction(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x8xf32>
  %r:3 = stablehlo.while(%i = %zero, %stack = %empty, %last = %arg1) : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %neutral = stablehlo.constant dense<0.0> : tensor<f32>
    %a = sdy.sharding_constraint %arg0 <@mesh, [{"y", "x"}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", "x"}, {}]>]>} : tensor<64x8xf32>
    %g = stablehlo.reduce(%t init: %neutral) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<64x8xf32>, tensor<f32>) -> tensor<8xf32>
    %v = stablehlo.reshape %g : (tensor<8xf32>) -> tensor<1x8xf32>
    %s = stablehlo.reduce(%v init: %neutral) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %row = stablehlo.reshape %s : (tensor<8xf32>) -> tensor<1x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %last : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  }
  return %r#1, %r#2 : tensor<3x8xf32>, tensor<8xf32>
}
