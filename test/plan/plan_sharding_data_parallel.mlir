// A large batch and small weights: the batch is split, and each gradient is reduced once.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: collectives = {"all-reduce" = 2 : i64}
// Two gradients of 512 x 2048 f32, of which each of 8 devices sends 2 x 7/8.
// CHECK-SAME: comm_bytes = {"all-reduce" = 14680064 : i64}
// CHECK: func.func @main(%[[W1:[^:]*]]: tensor<512x2048xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>
// CHECK-SAME: %[[W2:[^:]*]]: tensor<2048x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>
// CHECK-SAME: %[[X:[^:]*]]: tensor<65536x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[Y:[^:]*]]: tensor<65536x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// Nothing is resharded: layouts agree everywhere.
// CHECK-NOT: sdy.sharding_constraint
// The forward pass and the errors are split by rows.
// CHECK: %[[H:.*]] = stablehlo.dot_general %[[X]], %[[W1]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: %[[T:.*]] = stablehlo.tanh %[[H]] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: %[[P:.*]] = stablehlo.dot_general %[[T]], %[[W2]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK: %[[E:.*]] = stablehlo.subtract %[[P]], %[[Y]] {{.*}}<@mesh, [{"x"}, {}]>
// A gradient contracts the rows: partial sums, all-reduced to the layout of its weight.
// CHECK: stablehlo.dot_general %[[T]], %[[E]], contracting_dims = [0] x [0] {{.*}}<@mesh, [{}, {}]>
func.func @main(%w1: tensor<512x2048xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %w2: tensor<2048x512xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %x: tensor<65536x512xf32> {rhino.role = "batch"}, %y: tensor<65536x512xf32> {rhino.role = "batch"})
    -> (tensor<512x2048xf32>, tensor<2048x512xf32>) {
  // Forward.
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<65536x512xf32>, tensor<512x2048xf32>) -> tensor<65536x2048xf32>
  %t = stablehlo.tanh %h : tensor<65536x2048xf32>
  %p = stablehlo.dot_general %t, %w2, contracting_dims = [1] x [0] : (tensor<65536x2048xf32>, tensor<2048x512xf32>) -> tensor<65536x512xf32>
  %e = stablehlo.subtract %p, %y : tensor<65536x512xf32>
  // Backward.
  %g2 = stablehlo.dot_general %t, %e, contracting_dims = [0] x [0] : (tensor<65536x2048xf32>, tensor<65536x512xf32>) -> tensor<2048x512xf32>
  %dt = stablehlo.dot_general %e, %w2, contracting_dims = [1] x [1] : (tensor<65536x512xf32>, tensor<2048x512xf32>) -> tensor<65536x2048xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<65536x2048xf32>
  %g1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<65536x512xf32>, tensor<65536x2048xf32>) -> tensor<512x2048xf32>
  // Update.
  %n1 = stablehlo.subtract %w1, %g1 : tensor<512x2048xf32>
  %n2 = stablehlo.subtract %w2, %g2 : tensor<2048x512xf32>
  return %n1, %n2 : tensor<512x2048xf32>, tensor<2048x512xf32>
}
