// Calls become what each device computes on its parts.
// RUN: rhino-opt %s --rhino-partition-kernels --split-input-file | filecheck %s

// The batch over x, heads over y: local shapes inside, and in the configuration.
// CHECK-LABEL: module @attention
// CHECK: %[[M:.*]]:3 = sdy.manual_computation(%arg0, %arg1, %arg1)
// CHECK-SAME: in_shardings=[<@mesh, [{"x"}, {}, {"y"}, {}]>, <@mesh, [{"x"}, {}, {"y"}, {}]>, <@mesh, [{"x"}, {}, {"y"}, {}]>]
// CHECK-SAME: out_shardings=[<@mesh, [{"x"}, {"y"}, {}, {}]>, <@mesh, [{"x"}, {"y"}, {}]>, <@mesh, [{}]>] manual_axes={"x", "y"}
// CHECK-SAME: (%[[Q:.*]]: tensor<1x16x2x16xbf16>, %[[K:.*]]: tensor<1x16x1x16xbf16>, %[[V:.*]]: tensor<1x16x1x16xbf16>)
// CHECK-NEXT: %[[C:.*]]:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%[[Q]], %[[K]], %[[V]])
// CHECK-SAME: dimensions\22: [\221\22, \222\22, \2216\22, \2216\22]
// CHECK-SAME: rhino.kernel = {bytes = 3200 : i64, flops = 32768 : i64
// CHECK-SAME: -> (tensor<1x2x16x16xbf16>, tensor<1x2x16xf32>, tensor<0xui8>)
// CHECK-NEXT: sdy.return %[[C]]#0, %[[C]]#1, %[[C]]#2
// CHECK: return %[[M]]#0
module @attention {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%q: tensor<2x16x4x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}, {}]>}, %k: tensor<2x16x2x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}, {}]>}) -> tensor<2x4x16x16xbf16> {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %k) {api_version = 2 : i32, backend_config = "{\22cudnn_fmha_backend_config\22: {\22intermediate_tensor_shape\22: {\22dimensions\22: [\222\22, \224\22, \2216\22, \2216\22]}, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}}}",
      rhino.kernel = {bytes = 12800 : i64, flops = 131072 : i64, name = "cudnn-attention", rate = "attention", type = "bf16"},
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, kl, m], [i, n, k, m], [i, n, k, o])->([i, kl, j, o], [i, kl, j], [p]) {i=2, j=16, k=2, l=2, m=16, n=16, o=16, p=0} need_replication={m, n, o, p}, custom>} : (tensor<2x16x4x16xbf16>, tensor<2x16x2x16xbf16>, tensor<2x16x2x16xbf16>) -> (tensor<2x4x16x16xbf16>, tensor<2x4x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<2x4x16x16xbf16>
  }
}

// -----

// A result that has not got a split factor, but sums over it, is one part of the sum on each device: stacked, and summed.
// CHECK-LABEL: module @sums
// CHECK: %[[M:.*]]:2 = sdy.manual_computation(%arg0)
// CHECK-SAME: out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] manual_axes={"x"} (%[[A:.*]]: tensor<4x4xf32>)
// CHECK-NEXT: %[[C:.*]]:2 = stablehlo.custom_call @both(%[[A]])
// CHECK-SAME: -> (tensor<4x4xf32>, tensor<4xf32>)
// CHECK-NEXT: %[[S:.*]] = stablehlo.reshape %[[C]]#1 : (tensor<4xf32>) -> tensor<1x4xf32>
// CHECK-NEXT: sdy.return %[[C]]#0, %[[S]]
// CHECK: %[[R:.*]] = stablehlo.reduce(%[[M]]#1 init: %{{.*}}) applies stablehlo.add across dimensions = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK: return %[[M]]#0, %[[R]]
module @sums {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32>, tensor<4xf32>) {
    %0:2 = stablehlo.custom_call @both(%x) {rhino.kernel = {bytes = 8 : i64, flops = 8 : i64, name = "both", rate = "vector", type = "f32", sums = [0]},
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, <@mesh, [{}]>]>,
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j], [j]) {i=8, j=4}, custom>} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>)
    return %0#0, %0#1 : tensor<8x4xf32>, tensor<4xf32>
  }
}

// -----

// The largest value of all parts is found among those that devices have; y splits nothing, so that its devices agree.
// CHECK-LABEL: module @maxima
// CHECK: stablehlo.custom_call @scaled
// CHECK: "stablehlo.all_reduce"
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 2], [1, 3]]> : tensor<2x2xi64>
// CHECK: stablehlo.maximum
module @maxima {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32>, tensor<1xf32>) {
    %0:2 = stablehlo.custom_call @scaled(%x) {rhino.kernel = {bytes = 8 : i64, flops = 8 : i64, name = "scaled", rate = "vector", type = "f32", maxima = [1]},
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j], [k]) {i=8, j=4, k=1}, custom>} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<1xf32>)
    return %0#0, %0#1 : tensor<8x4xf32>, tensor<1xf32>
  }
}

// -----

// Parts of one axis split two dimensions: the largest value is that of the whole axis. A part that overlaps another
// splits nothing.
// CHECK-LABEL: module @strided
// CHECK: sdy.manual_computation(%arg0, %arg1)
// CHECK-SAME: in_shardings=[<@mesh, [{"x":(1)2}, {"x":(2)2}]>, <@mesh, [{"x":(2)2}, {}]>]
// CHECK-SAME: manual_axes={"x"} (%{{.*}}: tensor<4x2xf32>, %{{.*}}: tensor<2x4xf32>)
// CHECK: "stablehlo.all_reduce"
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 1, 2, 3]]> : tensor<1x4xi64>
// CHECK: stablehlo.maximum
module @strided {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {"x":(2)2}]>}, %y: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<8x4xf32>, tensor<1xf32>) {
    %0:2 = stablehlo.custom_call @scaled(%x, %y) {rhino.kernel = {bytes = 8 : i64, flops = 8 : i64, name = "scaled", rate = "vector", type = "f32", maxima = [1]},
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j, l])->([i, j], [k]) {i=8, j=4, k=1, l=4}, custom>} : (tensor<8x4xf32>, tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<1xf32>)
    return %0#0, %0#1 : tensor<8x4xf32>, tensor<1xf32>
  }
}

// -----

// What the rule refuses is not split, whatever the shardings say: the operand is made whole.
// CHECK-LABEL: module @whole
// CHECK: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>]
module @whole {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @f(%x) {rhino.kernel = {bytes = 8 : i64, flops = 8 : i64, name = "f", rate = "vector", type = "f32"},
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4} need_replication={i}, custom>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}

// -----

// In a loop, the layout of what the loop carries is the loop's.
// CHECK-LABEL: module @loop
// CHECK: stablehlo.while
// CHECK: do {
// CHECK: sdy.manual_computation(%{{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
module @loop {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %a = %x) : tensor<i32>, tensor<8x4xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.custom_call @f(%a) {rhino.kernel = {bytes = 8 : i64, flops = 8 : i64, name = "f", rate = "vector", type = "f32"},
        sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}, custom>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %2 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<8x4xf32>
    }
    return %0#1 : tensor<8x4xf32>
  }
}
