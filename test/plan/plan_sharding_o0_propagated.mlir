// Level O0 comes to the layouts that XLA comes to: Shardy is given the program as XLA has it by then.

// RUN: rhino-opt %s --rhino-plan-sharding='topology=dgx-h100:1 level=O0' --split-input-file | filecheck %s
// RUN: rhino-opt %s --rhino-plan-sharding='topology=dgx-h100:1 level=O0' --rhino-estimate=topology=dgx-h100:1 --split-input-file 2>&1 | filecheck %s --check-prefix=SAID

// A dimension of size 1 more is a reshape, through which layouts go before they go through products.
// CHECK-LABEL: module @reshaped
// CHECK: stablehlo.reshape %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<64xf32>) -> tensor<64x1xf32>
// SAID: remark: step {{.*}}; no collectives
module @reshaped {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<64x1xf32> {
    %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<64xf32>) -> tensor<64x1xf32>
    return %0 : tensor<64x1xf32>
  }
}

// -----

// What expands a dimension of size 1 is a copy of what has none.
// CHECK-LABEL: module @expanded
// CHECK: stablehlo.reshape %{{.*}} : (tensor<1x16xf32>) -> tensor<16xf32>
// CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1] {{.*}}: (tensor<16xf32>) -> tensor<64x16xf32>
module @expanded {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<1x16xf32>) -> tensor<64x16xf32> {
    %0 = stablehlo.broadcast_in_dim %b, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<64x16xf32>
    %1 = stablehlo.add %x, %0 : tensor<64x16xf32>
    return %1 : tensor<64x16xf32>
  }
}

// -----

// An element-wise operation of chlo, which XLA has decomposed by then, is one to Shardy; no rule of it stays.
// CHECK-LABEL: module @unknown
// CHECK: chlo.square %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<64x16xf32>
module @unknown {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<64x16xf32> {
    %0 = chlo.square %x : tensor<64x16xf32> -> tensor<64x16xf32>
    return %0 : tensor<64x16xf32>
  }
}

// -----

// A sum over what is split is partial: nothing is gathered for it, and rhino-estimate says what the plan says.
// CHECK-LABEL: module @summed attributes
// CHECK-SAME: collectives = {"all-reduce" = 1 : i64}, comm_bytes = {"all-reduce" = 112 : i64}
// SAID: all-reduce 0.00 MiB in 1
module @summed {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16xf32> {
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0] : (tensor<64x16xf32>, tensor<f32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}
