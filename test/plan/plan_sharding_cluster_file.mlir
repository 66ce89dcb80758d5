// A cluster from a YAML file: links between hosts are so slow that only the smallest tensors cross them.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=%S/Inputs/two_hosts.yaml" | filecheck %s

// The cluster's name, not the path of its file: plans do not depend on where a file lies.
// CHECK: rhino.cluster = {device = "toy", devices_per_host = 4 : i64, hosts = 2 : i64, name = "two-hosts
// CHECK: sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
// Nothing is split over hosts, of which x is the axis; within a host the weights are, and the batch is.
// CHECK-NOT: "x"
// CHECK: func.func @main(%{{[^:]*}}: tensor<1024x8192xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"y"}]>
// CHECK-SAME: %{{[^:]*}}: tensor<8192x1024xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"y", "z"}, {}]>
// CHECK-SAME: %{{[^:]*}}: tensor<4096x1024xf32> {{[{][^}]*}}sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}]>
// CHECK-NOT: "x"
func.func @main(%w1: tensor<1024x8192xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %w2: tensor<8192x1024xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %x: tensor<4096x1024xf32> {rhino.role = "batch"}, %y: tensor<4096x1024xf32> {rhino.role = "batch"})
    -> (tensor<1024x8192xf32>, tensor<8192x1024xf32>) {
  // Forward.
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<4096x1024xf32>, tensor<1024x8192xf32>) -> tensor<4096x8192xf32>
  %t = stablehlo.tanh %h : tensor<4096x8192xf32>
  %p = stablehlo.dot_general %t, %w2, contracting_dims = [1] x [0] : (tensor<4096x8192xf32>, tensor<8192x1024xf32>) -> tensor<4096x1024xf32>
  %e = stablehlo.subtract %p, %y : tensor<4096x1024xf32>
  // Backward.
  %g2 = stablehlo.dot_general %t, %e, contracting_dims = [0] x [0] : (tensor<4096x8192xf32>, tensor<4096x1024xf32>) -> tensor<8192x1024xf32>
  %dt = stablehlo.dot_general %e, %w2, contracting_dims = [1] x [1] : (tensor<4096x1024xf32>, tensor<8192x1024xf32>) -> tensor<4096x8192xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<4096x8192xf32>
  %g1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<4096x1024xf32>, tensor<4096x8192xf32>) -> tensor<1024x8192xf32>
  // Update.
  %n1 = stablehlo.subtract %w1, %g1 : tensor<1024x8192xf32>
  %n2 = stablehlo.subtract %w2, %g2 : tensor<8192x1024xf32>
  return %n1, %n2 : tensor<1024x8192xf32>, tensor<8192x1024xf32>
}
