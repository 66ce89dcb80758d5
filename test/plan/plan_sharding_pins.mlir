// Shardings the user gave are kept, and the rest is planned around them, on the user's mesh with its axis names.
// RUN: rhino-opt %s --rhino-plan-sharding=topology=dgx-h100:1 --split-input-file | filecheck %s

// A weight held by columns: the product is split by columns rather than rows, and the mesh is not written twice.
// CHECK-LABEL: module @argument
// CHECK: sdy.mesh @mesh = <["data"=2, "model"=4]>
// CHECK-NOT: sdy.mesh
// CHECK: func.func @main(%{{[^:]*}}: tensor<64x512xf32>
// CHECK-SAME: %[[W:[^:]*]]: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}
// CHECK: stablehlo.dot_general %{{.*}}, %[[W]], {{.*}}<@mesh, [{{.*}}, {{{.*}}"model"}]>
module @argument {
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch"}, %w: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>})
      -> tensor<64x512xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    return %0 : tensor<64x512xf32>
  }
}

// -----

// A replicated result is a choice too: the parts are gathered.
// CHECK-LABEL: module @result
// CHECK: collectives = {"all-gather" = 1 : i64}
// CHECK: -> (tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
module @result {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %w: tensor<512x512xf32>)
      -> (tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    return %0 : tensor<64x512xf32>
  }
}

// -----

// Two axes on one dimension stay in the order given, which need not be the mesh's.
// CHECK-LABEL: module @two_axes
// CHECK: %{{[^:]*}}: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}, {}]>}
module @two_axes {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func @main(%x: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}, {}]>}) -> tensor<64x512xf32> {
    %0 = stablehlo.tanh %x : tensor<64x512xf32>
    return %0 : tensor<64x512xf32>
  }
}
