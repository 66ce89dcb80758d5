// Large weights and a small batch: the first weight is split by columns, the second by rows, as Megatron does. What is
// sent is activations, and as reduce-scatter and all-gather: half the bytes of Megatron's two all-reduces.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: collectives = {"all-gather" = 2 : i64, "reduce-scatter" = 1 : i64}
// Activations of 512 x 4096 f32, of which each of 8 devices sends 7/8.
// CHECK-SAME: comm_bytes = {"all-gather" = 14680064 : i64, "reduce-scatter" = 7340032 : i64}
// CHECK: func.func @main(%[[W1:[^:]*]]: tensor<4096x16384xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>
// CHECK-SAME: %[[W2:[^:]*]]: tensor<16384x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// The input arrives in parts and is gathered once for its two readers.
// CHECK-SAME: %[[X:[^:]*]]: tensor<512x4096xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK: %[[WHOLE:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]>
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[WHOLE]], %[[W1]], {{.*}}<@mesh, [{}, {"x"}]>
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[H]] {{.*}}<@mesh, [{}, {"x"}]>
// The columns of the hidden layer are contracted: partial sums, reduce-scattered by rows.
// CHECK-NEXT: %[[P:.*]] = stablehlo.dot_general %[[T]], %[[W2]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[E:.*]] = stablehlo.subtract %[[P]], %{{.*}} {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[ERRORS:.*]] = sdy.sharding_constraint %[[E]] <@mesh, [{}, {}]>
// Gradients come out as their weights are held.
// CHECK-NEXT: stablehlo.dot_general %[[T]], %[[ERRORS]], contracting_dims = [0] x [0] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: stablehlo.dot_general %[[WHOLE]], %{{.*}}, contracting_dims = [0] x [0] {{.*}}<@mesh, [{}, {"x"}]>
func.func @main(%w1: tensor<4096x16384xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %w2: tensor<16384x4096xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %x: tensor<512x4096xf32> {rhino.role = "batch"}, %y: tensor<512x4096xf32> {rhino.role = "batch"})
    -> (tensor<4096x16384xf32>, tensor<16384x4096xf32>) {
  // Forward.
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<512x4096xf32>, tensor<4096x16384xf32>) -> tensor<512x16384xf32>
  %t = stablehlo.tanh %h : tensor<512x16384xf32>
  %p = stablehlo.dot_general %t, %w2, contracting_dims = [1] x [0] : (tensor<512x16384xf32>, tensor<16384x4096xf32>) -> tensor<512x4096xf32>
  %e = stablehlo.subtract %p, %y : tensor<512x4096xf32>
  // Backward.
  %g2 = stablehlo.dot_general %t, %e, contracting_dims = [0] x [0] : (tensor<512x16384xf32>, tensor<512x4096xf32>) -> tensor<16384x4096xf32>
  %dt = stablehlo.dot_general %e, %w2, contracting_dims = [1] x [1] : (tensor<512x4096xf32>, tensor<16384x4096xf32>) -> tensor<512x16384xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<512x16384xf32>
  %g1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<512x4096xf32>, tensor<512x16384xf32>) -> tensor<4096x16384xf32>
  // Update.
  %n1 = stablehlo.subtract %w1, %g1 : tensor<4096x16384xf32>
  %n2 = stablehlo.subtract %w2, %g2 : tensor<16384x4096xf32>
  return %n1, %n2 : tensor<4096x16384xf32>, tensor<16384x4096xf32>
}
