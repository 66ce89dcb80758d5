// The role of an argument has a price: a batch comes from the host every step, in parts where it can; a parameter stays.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" --split-input-file | filecheck %s

// CHECK-LABEL: module @batch
// CHECK: %[[X:[^:]*]]: tensor<64x512xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// CHECK-NOT: sdy.sharding_constraint
module @batch {
  func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch"}, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    return %0 : tensor<64x512xf32>
  }
}

// -----

// Nobody brings it in every step: it may stay whole, and the weight is split instead.
// CHECK-LABEL: module @other
// CHECK: %[[X:[^:]*]]: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}
module @other {
  func.func @main(%x: tensor<64x512xf32>, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    return %0 : tensor<64x512xf32>
  }
}
