// topology: the cluster of all groups; what does not divide into equal shards is whole between fragments.
// RUN: rhino-opt %s --rhino-form-fragments=topology=p3.8xlarge:1 | filecheck %s

// CHECK: rhino.cluster = {device = "v100", devices_per_host = 4 : i64, hosts = 1 : i64, name = "p3.8xlarge:1"}
// CHECK-SAME: rhino.placement = {stage0 = [0, 1], stage1 = [2, 3]}
// CHECK-LABEL: func.func private @microbatch
// Three rows over two devices: not a type of a tensor on a mesh.
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0>
// CHECK: stablehlo.tanh %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>}
// CHECK: -> !mpmd.mesh_tensor<"stage0", tensor<3x4xf32>, sharding=<@mesh, [{}, {"y"}]>>
// A constraint that one reader asked for is in that reader's fragment.
// CHECK: mpmd.transfer %[[H]]
// CHECK: mpmd.fragment<mesh="stage1", origin=["forward"], stage=1>
// CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh, [{}, {}]>
// CHECK-NEXT: stablehlo.exponential
module attributes {rhino.cluster = {device = "v100", devices_per_host = 2 : i64, hosts = 1 : i64, name = "part:1"}} {
  sdy.mesh @mesh = <["x"=2, "y"=1]>
  func.func @main(%x: tensor<3x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 2 : i64}}
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : tensor<3x4xf32>
      %all = sdy.sharding_constraint %h <@mesh, [{}, {}]> : tensor<3x4xf32>
      %y = stablehlo.exponential %all {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<3x4xf32>
      %b = stablehlo.add %a, %y {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<3x4xf32>
      %j = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %j, %b : tensor<i32>, tensor<3x4xf32>
    }
    return %r#1 : tensor<3x4xf32>
  }
}
