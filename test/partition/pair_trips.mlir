// Two trips are in one where a trip gathers what the next one reads; of three, the first is in front of the loop.
// RUN: rhino-opt %s --rhino-pair-trips | filecheck %s
// RUN: rhino-opt %s --rhino-pair-trips --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: rhino-opt %s --rhino-gather-earlier --rhino-pair-trips --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=COUNT
// COUNT: (S) 3 loops

sdy.mesh @mesh = <["x"=2, "y"=4]>

// The second trip reads what the first one has gathered, behind a barrier; but what is counted goes on by itself.
// CHECK-LABEL: func.func @even
// CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %[[H:.*]] = %arg0, %[[W:.*]] = %{{.*}})
// CHECK: do {
// CHECK: %[[H1:.*]] = stablehlo.dot_general %[[H]], %[[W]]
// CHECK: %[[J:.*]] = stablehlo.add %[[I]], %[[ONE:.*]] : tensor<i32>
// CHECK: stablehlo.dynamic_slice %arg1, %[[J]]
// CHECK: %[[W1:.*]] = sdy.sharding_constraint
// CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier
// CHECK-SAME: [<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {}]>]
// CHECK-SAME: %[[J]], %[[H1]], %[[W1]]
// CHECK: %[[H2:.*]] = stablehlo.dot_general %[[B]]#1, %[[B]]#2
// CHECK: %[[K:.*]] = stablehlo.add %[[B]]#0, %[[ONE]]
// CHECK: stablehlo.dynamic_slice %arg1, %[[K]]
// CHECK: %[[W2:.*]] = sdy.sharding_constraint
// CHECK: %[[NEXT:.*]] = stablehlo.add %[[J]], %[[ONE]]
// CHECK: stablehlo.return %[[NEXT]], %[[H2]], %[[W2]]
func.func @even(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %ws: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %s0 = stablehlo.slice %ws [0:1, 0:8, 0:8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>) -> tensor<1x8x8xf32>
  %l0 = stablehlo.reshape %s0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %w0 = sdy.sharding_constraint %l0 <@mesh, [{}, {}]> : tensor<8x8xf32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %w = %w0) : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %next = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    stablehlo.return %j, %y, %next : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}

// CHECK-LABEL: func.func @odd
// CHECK: %[[W0:.*]] = sdy.sharding_constraint
// CHECK: %[[H1:.*]] = stablehlo.dot_general %arg0, %[[W0]]
// CHECK: %[[J:.*]] = stablehlo.add
// CHECK: %[[W1:.*]] = sdy.sharding_constraint
// CHECK: stablehlo.while(%{{.*}} = %[[J]], %{{.*}} = %[[H1]], %{{.*}} = %[[W1]])
// CHECK: do {
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: stablehlo.return
func.func @odd(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %ws: tensor<3x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %s0 = stablehlo.slice %ws [0:1, 0:8, 0:8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<3x8x8xf32>) -> tensor<1x8x8xf32>
  %l0 = stablehlo.reshape %s0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %w0 = sdy.sharding_constraint %l0 <@mesh, [{}, {}]> : tensor<8x8xf32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %w = %w0) : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %next = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    stablehlo.return %j, %y, %next : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}

// What the loop only adds up has a place for each of the two trips, and they are added behind it.
// CHECK-LABEL: func.func @adds
// CHECK: %[[R:.*]]:5 = stablehlo.while({{.*}}%[[A:[^ ]*]] = %{{[^ ]*}}, %[[A2:[^ ]*]] = %{{[^ ]*}})
// CHECK-SAME: tensor<8xf32>, tensor<8xf32>
// CHECK-SAME: [<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{}]>, <@mesh, [{}]>]
// CHECK: do {
// CHECK: %[[S:.*]] = stablehlo.reduce
// CHECK: %[[B:.*]] = stablehlo.add %[[A]], %[[S]]
// CHECK: optimization_barrier
// CHECK-NOT: %[[B]]
// CHECK: %[[S2:.*]] = stablehlo.reduce
// CHECK: %[[B2:.*]] = stablehlo.add %[[A2]], %[[S2]]
// CHECK: stablehlo.return {{.*}}, %[[B]], %[[B2]]
// CHECK: %[[T:.*]] = stablehlo.add %[[R]]#3, %[[R]]#4 {sdy.sharding
// CHECK: return %[[R]]#1, %[[T]]
func.func @adds(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %ws: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> (tensor<64x8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %a0 = stablehlo.constant dense<0.0> : tensor<8xf32>
  %s0 = stablehlo.slice %ws [0:1, 0:8, 0:8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>) -> tensor<1x8x8xf32>
  %l0 = stablehlo.reshape %s0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %w0 = sdy.sharding_constraint %l0 <@mesh, [{}, {}]> : tensor<8x8xf32>
  %r:4 = stablehlo.while(%i = %zero, %h = %x, %w = %w0, %a = %a0) : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>, tensor<8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %p = stablehlo.reduce(%y init: %f0) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<64x8xf32>, tensor<f32>) -> tensor<8xf32>
    %b = stablehlo.add %a, %p {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : tensor<8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %next = sdy.sharding_constraint %l <@mesh, [{}, {}]> : tensor<8x8xf32>
    stablehlo.return %j, %y, %next, %b : tensor<i32>, tensor<64x8xf32>, tensor<8x8xf32>, tensor<8xf32>
  }
  return %r#1, %r#3 : tensor<64x8xf32>, tensor<8xf32>
}
