// What a trip gathers of its layer is gathered by the trip before, the first time in front of the loop.
// RUN: rhino-opt %s --rhino-gather-earlier | filecheck %s
// RUN: rhino-opt %s --rhino-gather-earlier=first | filecheck %s --check-prefix=FIRST
// RUN: rhino-opt %s --rhino-gather-earlier --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: rhino-opt %s --rhino-gather-earlier=first --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=LESS
// RUN: rhino-opt %s --rhino-gather-earlier | rhino-opt --rhino-gather-earlier --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=AGAIN
// COUNT: (S) 3 gathers
// LESS: (S) 2 gathers
// AGAIN: (S) 0 gathers

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Forward: the first matrix is gathered in two steps, which is handed on once; the second is converted before.
// CHECK-LABEL: func.func @forward
// CHECK: %[[S0:.*]] = stablehlo.dynamic_slice %arg1, %[[ZERO:.*]], %[[ZERO]], %[[ZERO]]
// CHECK: sdy.sharding_constraint
// CHECK: %[[W0:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]> : tensor<8x8xf32>
// CHECK: %[[V0:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]> : tensor<8x8xbf16>
// CHECK: stablehlo.while({{.*}}, %[[W:[a-zA-Z0-9_]+]] = %[[W0]], %[[V:[a-zA-Z0-9_]+]] = %[[V0]])
// CHECK-SAME: <@mesh, [{}, {}]>, <@mesh, [{}, {}]>]>
// CHECK: do {
// CHECK-NOT: dynamic_slice
// CHECK: %[[Y:.*]] = stablehlo.dot_general %{{.*}}, %[[W]], contracting_dims
// CHECK-NOT: dynamic_slice
// CHECK: stablehlo.dot_general %{{.*}}, %[[V]], contracting_dims
// CHECK: %[[NEXT:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<i32>
// CHECK: %[[A:.*]] = stablehlo.dynamic_slice %{{.*}}, %[[NEXT]], %
// CHECK: %[[W1:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]> : tensor<8x8xf32>
// CHECK: %[[V1:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]> : tensor<8x8xbf16>
// CHECK: stablehlo.return {{.*}}, %[[W1]], %[[V1]] :
// FIRST-LABEL: func.func @forward
// FIRST: do {
// FIRST: sdy.sharding_constraint {{.*}} tensor<8x8xbf16>
// FIRST: stablehlo.dot_general
// FIRST: sdy.sharding_constraint {{.*}} <@mesh, [{}, {}]> : tensor<8x8xf32>
// FIRST: stablehlo.return
func.func @forward(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %ws: tensor<3x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>}, %vs: tensor<3x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %r:4 = stablehlo.while(%i = %zero, %h = %x, %w = %ws, %v = %vs) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {"x"}, {"y"}]>, <@mesh, [{}, {"x"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %s = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {"y"}]>]>} : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %half = sdy.sharding_constraint %l <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
    %whole = sdy.sharding_constraint %half <@mesh, [{}, {}]> : tensor<8x8xf32>
    %y = stablehlo.dot_general %h, %whole, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %t = stablehlo.dynamic_slice %v, %i, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %u = stablehlo.reshape %t {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %c = stablehlo.convert %u {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
    %second = sdy.sharding_constraint %c <@mesh, [{}, {}]> : tensor<8x8xbf16>
    %z = stablehlo.dot_general %y, %second, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xbf16>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %z, %w, %v : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}

// Backward: by an index that is counted down, behind the barrier of jax.checkpoint, and read twice.
// CHECK-LABEL: func.func @backward
// CHECK: %[[W0:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]> : tensor<8x8xf32>
// CHECK: stablehlo.while({{.*}}, %[[W:[a-zA-Z0-9_]+]] = %[[W0]])
// CHECK: do {
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[B]]#0, %[[W]]
// CHECK: stablehlo.dot_general %[[Y]], %[[W]]
// CHECK: %[[NEXT:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<i32>
// CHECK: %[[AT:.*]] = stablehlo.subtract %{{.*}}, %[[NEXT]]
// CHECK: stablehlo.dynamic_slice %{{.*}}, %[[AT]]
// CHECK: %[[L:.*]] = stablehlo.reshape
// CHECK: %[[W1:.*]] = sdy.sharding_constraint %[[L]] <@mesh, [{}, {}]> : tensor<8x8xf32>
// CHECK: stablehlo.return {{.*}}, %[[W1]] :
// FIRST-LABEL: func.func @backward
// FIRST: stablehlo.while({{.*}}, %[[FW:[a-zA-Z0-9_]+]] = %{{[0-9]+}})
// FIRST: %[[FY:.*]] = stablehlo.dot_general %{{.*}}, %[[FW]]
// FIRST: stablehlo.dot_general %[[FY]], %[[FW]]
func.func @backward(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %ws: tensor<3x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<64x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %w = %ws) : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {"x"}, {}]>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %at = stablehlo.subtract %two, %i : tensor<i32>
    %s = stablehlo.dynamic_slice %w, %at, %zero, %zero, sizes = [1, 8, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %l = stablehlo.reshape %s {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %b:2 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>, <@mesh, [{"x"}, {}]>]>} %h, %l : tensor<64x8xf32>, tensor<8x8xf32>
    %whole = sdy.sharding_constraint %b#1 <@mesh, [{}, {}]> : tensor<8x8xf32>
    %y = stablehlo.dot_general %b#0, %whole, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %again = sdy.sharding_constraint %b#1 <@mesh, [{}, {}]> : tensor<8x8xf32>
    %z = stablehlo.dot_general %y, %again, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %z, %w : tensor<i32>, tensor<64x8xf32>, tensor<3x8x8xf32>
  }
  return %r#1 : tensor<64x8xf32>
}
