// A stack stays whose rows are no sums over devices, that starts with something, or whose gradient is read before it is
// there; so does what is laid out nowhere.
// RUN: rhino-opt %s --rhino-sum-later | filecheck %s
// RUN: rhino-opt %s --rhino-sum-later=axes=y --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not rhino-opt %s --rhino-sum-later=axes=z 2>&1 | filecheck %s --check-prefix=OPTION
// NONE: (S) 0 gradients
// OPTION: no mesh has an axis 'z'
// OPTION: those of the module are x, y

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @whole
// CHECK: %[[R:.*]]:3 = stablehlo.while
// CHECK: return %[[R]]#1, %[[R]]#2
func.func @whole(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
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
    %a = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : tensor<64x8xf32>
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

// CHECK-LABEL: func.func @largest
// CHECK: %[[R:.*]]:3 = stablehlo.while
// CHECK: return %[[R]]#1, %[[R]]#2
func.func @largest(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
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
    %a = sdy.sharding_constraint %arg0 <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : tensor<64x8xf32>
    %g = stablehlo.reduce(%t init: %neutral) applies stablehlo.maximum across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<64x8xf32>, tensor<f32>) -> tensor<8xf32>
    %v = stablehlo.reshape %g : (tensor<8xf32>) -> tensor<1x8xf32>
    %s = stablehlo.reduce(%v init: %neutral) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %row = stablehlo.reshape %s : (tensor<8xf32>) -> tensor<1x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %last : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  }
  return %r#1, %r#2 : tensor<3x8xf32>, tensor<8xf32>
}

// CHECK-LABEL: func.func @starts_with_ones
// CHECK: %[[R:.*]]:3 = stablehlo.while
// CHECK: return %[[R]]#1, %[[R]]#2
func.func @starts_with_ones(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<1.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x8xf32>
  %r:3 = stablehlo.while(%i = %zero, %stack = %empty, %last = %arg1) : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %neutral = stablehlo.constant dense<0.0> : tensor<f32>
    %a = sdy.sharding_constraint %arg0 <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : tensor<64x8xf32>
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

// CHECK-LABEL: func.func @read_at_once
// CHECK: %[[R:.*]]:3 = stablehlo.while
// CHECK: return %[[R]]#1, %[[R]]#2
func.func @read_at_once(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
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
    %a = sdy.sharding_constraint %arg0 <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : tensor<64x8xf32>
    %g = stablehlo.reduce(%t init: %neutral) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<64x8xf32>, tensor<f32>) -> tensor<8xf32>
    %v = stablehlo.reshape %g : (tensor<8xf32>) -> tensor<1x8xf32>
    %s = stablehlo.reduce(%v init: %neutral) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %row = stablehlo.reshape %s : (tensor<8xf32>) -> tensor<1x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %g : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  }
  return %r#1, %r#2 : tensor<3x8xf32>, tensor<8xf32>
}

// CHECK-LABEL: func.func @laid_out_nowhere
// CHECK: %[[R:.*]]:3 = stablehlo.while
// CHECK: return %[[R]]#1, %[[R]]#2
func.func @laid_out_nowhere(%arg0: tensor<64x8xf32>, %arg1: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<8xf32>) {
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
    %a = sdy.sharding_constraint %arg0 <@mesh, [{"x", "y"}, {}]> : tensor<64x8xf32>
    %t = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : tensor<64x8xf32>
    %g = stablehlo.reduce(%t init: %neutral) applies stablehlo.add across dimensions = [0] : (tensor<64x8xf32>, tensor<f32>) -> tensor<8xf32>
    %v = stablehlo.reshape %g : (tensor<8xf32>) -> tensor<1x8xf32>
    %s = stablehlo.reduce(%v init: %neutral) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %row = stablehlo.reshape %s : (tensor<8xf32>) -> tensor<1x8xf32>
    %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %last : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>
  }
  return %r#1, %r#2 : tensor<3x8xf32>, tensor<8xf32>
}
