// A scan over layers, as jax lowers it: what the loop carries keeps its layout, and the body is planned like any code.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: func.func @main(%[[WS:[^:]*]]: tensor<6x512x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>
// CHECK-SAME: %[[X:[^:]*]]: tensor<4096x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// One sharding per carried value: the counter, the activations, the stacked weights.
// CHECK: %[[OUT:.*]]:3 = stablehlo.while(%{{.*}} = %{{.*}}, %[[H:.*]] = %[[X]], %[[W:.*]] = %[[WS]])
// CHECK-SAME: sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>, <@mesh, [{}, {}, {}]>]>
// CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[W]], {{.*}}<@mesh, [{}, {}, {}]>
// CHECK: %[[LAYER:.*]] = stablehlo.reshape %[[SLICE]] {{.*}}<@mesh, [{}, {}]>
// CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[H]], %[[LAYER]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: stablehlo.tanh %[[DOT]] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: return %[[OUT]]#1
func.func @main(%ws: tensor<6x512x512xf32> {rhino.role = "param"}, %x: tensor<4096x512xf32> {rhino.role = "batch"}) -> tensor<4096x512xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %out:3 = stablehlo.while(%i = %zero, %h = %x, %w = %ws) : tensor<i32>, tensor<4096x512xf32>, tensor<6x512x512xf32>
  cond {
    %six = stablehlo.constant dense<6> : tensor<i32>
    %more = stablehlo.compare LT, %i, %six : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %none = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %slice = stablehlo.dynamic_slice %w, %i, %none, %none, sizes = [1, 512, 512] : (tensor<6x512x512xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x512x512xf32>
    %layer = stablehlo.reshape %slice : (tensor<1x512x512xf32>) -> tensor<512x512xf32>
    %dot = stablehlo.dot_general %h, %layer, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
    %next = stablehlo.tanh %dot : tensor<4096x512xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %w : tensor<i32>, tensor<4096x512xf32>, tensor<6x512x512xf32>
  }
  return %out#1 : tensor<4096x512xf32>
}
