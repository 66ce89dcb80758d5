// A large batch and small weights: the batch is split, each weight is gathered once, and each gradient is scattered to
// where its weight is kept. That sends what all-reduces of the gradients would, and divides the update as well.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: collectives = {"all-gather" = 2 : i64, "reduce-scatter" = 2 : i64}
// Two weights of 512 x 2048 f32, of which each of 8 devices sends 7/8.
// CHECK-SAME: comm_bytes = {"all-gather" = 7340032 : i64, "reduce-scatter" = 7340032 : i64}
// CHECK: func.func @main(%[[W1:[^:]*]]: tensor<512x2048xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[W2:[^:]*]]: tensor<2048x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[X:[^:]*]]: tensor<65536x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK-SAME: %[[Y:[^:]*]]: tensor<65536x512xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// The forward pass and the errors are split by rows, and read whole weights.
// CHECK: %[[G1:.*]] = sdy.sharding_constraint %[[W1]] <@mesh, [{}, {}]>
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[X]], %[[G1]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[H]] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[G2:.*]] = sdy.sharding_constraint %[[W2]] <@mesh, [{}, {}]>
// CHECK-NEXT: %[[P:.*]] = stablehlo.dot_general %[[T]], %[[G2]], {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[E:.*]] = stablehlo.subtract %[[P]], %[[Y]] {{.*}}<@mesh, [{"x"}, {}]>
// A gradient contracts the rows: partial sums, reduce-scattered. The backward pass reads the same whole weight.
// CHECK-NEXT: stablehlo.dot_general %[[T]], %[[E]], contracting_dims = [0] x [0] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NEXT: stablehlo.dot_general %[[E]], %[[G2]], contracting_dims = [1] x [1] {{.*}}<@mesh, [{"x"}, {}]>
// CHECK-NOT: sdy.sharding_constraint
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
