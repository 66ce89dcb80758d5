// rhino attributes survive the C++ passes of a plan: they are discardable, and nothing discards them.
// RUN: rhino-opt %s --inline --cse --canonicalize --sdy-propagation-pipeline --rhino-verify | filecheck %s

// CHECK: module attributes {rhino.cluster = {{.*}}, rhino.placement = {mesh = [1, 0]}}
module attributes {rhino.cluster = {name = "c:1", hosts = 1 : i64, devices_per_host = 2 : i64, device = "cpu"},
                   rhino.placement = {mesh = [1, 0]}} {
  sdy.mesh @mesh = <["x"=2]>
  // CHECK: rhino.name = "w", rhino.role = "param"
  // CHECK-SAME: rhino.name = "y"
  func.func @main(%w: tensor<4xf32> {rhino.name = "w", rhino.role = "param", sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> (tensor<4xf32> {rhino.name = "y"}) {
    // CHECK: stablehlo.tanh
    // CHECK-SAME: rhino.stage = {phase = "forward", stage = 0 : i64}
    // CHECK-SAME: sdy.sharding
    %0 = stablehlo.tanh %w {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
