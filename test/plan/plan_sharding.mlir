// What the pass writes: the mesh, closed shardings on everything whose layout matters, constraints where layouts change.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" --split-input-file | filecheck %s

// A matrix product: its rows are split, and nothing has to be sent. The weights stay whole.
// CHECK-LABEL: module @product
// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK: func.func @main(%[[X:[^:]*]]: tensor<64x32xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// CHECK-SAME: %[[W:[^:]*]]: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: -> (tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// CHECK-NEXT: stablehlo.dot_general %[[X]], %[[W]], {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>
module @product {
  func.func @main(%x: tensor<64x32xf32> {rhino.role = "batch"}, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
    return %0 : tensor<64x16xf32>
  }
}

// -----

// Element-wise ops, broadcasts and transposes follow the dimension that is split, wherever it goes.
// CHECK-LABEL: module @cone
// CHECK: %[[X:[^:]*]]: tensor<64x32xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// CHECK: %[[T:.*]] = stablehlo.transpose %[[X]], dims = [1, 0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: %[[B:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[T]], %[[B]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: stablehlo.reshape %[[A]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"x"}, {}]>]>}
module @cone {
  func.func @main(%x: tensor<64x32xf32> {rhino.role = "batch"}, %b: tensor<32xf32>) -> tensor<4x8x16x4xf32> {
    %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %1 = stablehlo.broadcast_in_dim %b, dims = [0] : (tensor<32xf32>) -> tensor<32x64xf32>
    %2 = stablehlo.add %0, %1 : tensor<32x64xf32>
    %3 = stablehlo.reshape %2 : (tensor<32x64xf32>) -> tensor<4x8x16x4xf32>
    return %3 : tensor<4x8x16x4xf32>
  }
}

// -----

// A scalar has nothing to split, and an argument that nobody reads stays as it is.
// CHECK-LABEL: module @scalars
// CHECK: %{{[^:]*}}: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}
// CHECK-SAME: %{{[^:]*}}: tensor<3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}
// CHECK-SAME: -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
module @scalars {
  func.func @main(%a: tensor<f32>, %unused: tensor<3xf32>) -> tensor<f32> {
    %0 = stablehlo.add %a, %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// 7 and 5 divide by no power of two: everything is replicated rather than padded.
// CHECK-LABEL: module @odd_sizes
// CHECK: %{{[^:]*}}: tensor<7x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: %{{[^:]*}}: tensor<5x7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
module @odd_sizes {
  func.func @main(%x: tensor<7x5xf32>, %w: tensor<5x7xf32>) -> tensor<7x7xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<7x5xf32>, tensor<5x7xf32>) -> tensor<7x7xf32>
    return %0 : tensor<7x7xf32>
  }
}

// -----

// A donated argument is held as the result that takes its buffer: else the buffer could not be reused.
// CHECK-LABEL: module @donated
// CHECK: %{{[^:]*}}: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [[DIMS:[^>]*]]>, tf.aliasing_output = 1 : i32}
// CHECK-SAME: -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [[DIMS]]>})
module @donated {
  func.func @main(%w: tensor<64x64xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<64x64xf32> {rhino.role = "batch"})
      -> (tensor<64x64xf32>, tensor<64x64xf32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %1 = stablehlo.add %w, %w : tensor<64x64xf32>
    return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
  }
}
