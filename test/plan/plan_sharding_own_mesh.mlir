// A step with annotations of its own: kept on its own axes, beside which a plan has others.
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 stages=1" --split-input-file | filecheck %s
// RUN: rhino-opt %s --rhino-auto="topology=dgx-h100:1 level=O0" --split-input-file | filecheck %s --check-prefix=O0

// Half of the cluster's devices: the plan has an axis of its own, and the constraint holds on the step's.
// CHECK-LABEL: module @part
// CHECK: sdy.mesh @mesh = <[{{.*}}"data"=4{{.*}}]>
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"data"{{.*}}}, {}]>
// O0-LABEL: module @part
// O0: sdy.mesh @mesh = <["x"=2, "data"=4]>
// O0: sdy.reshard %{{.*}} <@mesh, [{"data"}, {}]>
module @part {
  sdy.mesh @mesh = <["data"=4, "model"=1]>
  func.func @main(%x: tensor<64x512xf32>, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {"model"}]> : tensor<64x512xf32>
    return %1 : tensor<64x512xf32>
  }
}

// -----

// Constraints on values that are combined each hold where they stand.
// CHECK-LABEL: module @contradicting
// CHECK-DAG: %[[A:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{"x"}, {}]>
// CHECK-DAG: %[[B:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{}, {"x"}]>
// CHECK: stablehlo.add
// CHECK: return
module @contradicting {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<64x512xf32>, %y: tensor<64x512xf32>) -> tensor<64x512xf32> {
    %0 = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<64x512xf32>
    %1 = sdy.sharding_constraint %y <@mesh, [{}, {"x"}]> : tensor<64x512xf32>
    %2 = stablehlo.add %0, %1 : tensor<64x512xf32>
    return %2 : tensor<64x512xf32>
  }
}

// -----

// An open dimension (jax's P.UNCONSTRAINED) may be split by what its constraint does not name.
// CHECK-LABEL: module @open
// CHECK: stablehlo.dot_general
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"a"}, {"b"}]>
module @open {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func @main(%x: tensor<4096x8192xbf16>, %up: tensor<8192x32768xbf16>, %down: tensor<32768x8192xbf16>) -> tensor<4096x8192xbf16> {
    %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x32768xbf16>) -> tensor<4096x32768xbf16>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"a"}, {?}]> : tensor<4096x32768xbf16>
    %2 = stablehlo.dot_general %1, %down, contracting_dims = [1] x [0] : (tensor<4096x32768xbf16>, tensor<32768x8192xbf16>) -> tensor<4096x8192xbf16>
    return %2 : tensor<4096x8192xbf16>
  }
}
