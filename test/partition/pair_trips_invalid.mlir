// Left: a loop of which nobody knows how many trips it has, one that may end before it has counted, and one that gathers
// what the same trip reads.
// RUN: rhino-opt %s --rhino-pair-trips | filecheck %s
// RUN: rhino-opt %s --rhino-pair-trips --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not rhino-opt %s --rhino-pair-trips=twice 2>&1 | filecheck %s --check-prefix=OPTION
// NONE: (S) 0 loops
// OPTION: rhino-pair-trips

sdy.mesh @mesh = <["x"=2]>

// CHECK-LABEL: func.func @as_long_as_it_takes
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @as_long_as_it_takes(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %ws: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %w0: tensor<8x8xf32>, %n: tensor<i32>) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %w = %w0) : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %next = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    stablehlo.return %j, %y, %next : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}

// CHECK-LABEL: func.func @at_most_four
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @at_most_four(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %ws: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %w0: tensor<8x8xf32>, %m: tensor<i32>) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %w = %w0) : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %enough = stablehlo.compare LT, %i, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %both = stablehlo.and %more, %enough : tensor<i1>
    stablehlo.return %both : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %next = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    stablehlo.return %j, %y, %next : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}

// CHECK-LABEL: func.func @for_itself
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @for_itself(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %ws: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<64x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %s = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %w = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %y : tensor<i32>, tensor<64x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}
