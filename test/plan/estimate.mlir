// A plan that is already in the module is priced: a headline at @main, a remark per costly collective, costs on heavy ops.
// RUN: rhino-opt %s --rhino-estimate=topology=dgx-h100:1 --split-input-file --verify-diagnostics | filecheck %s
// Fewer remarks on request; the headline stays.
// RUN: rhino-opt %s --rhino-estimate="topology=dgx-h100:1 remarks=0" --split-input-file 2>&1 | filecheck %s --check-prefix=QUIET

// QUIET-NOT: remark: all-reduce
// QUIET: remark: step
// QUIET-NOT: remark: all-gather

// Rows split: no communication. Flops and bytes are of one device.
// CHECK-LABEL: module @rows
// CHECK: %[[X:[^:]*]]: tensor<4096x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// 2 x 4096 x 512 x 512 / 8 flops.
// CHECK: stablehlo.dot_general %[[X]], {{.*}}rhino.cost = {bytes = {{[0-9]+}} : i64, flops = 268435456 : i64, time_s = {{.*}} : f64}
// Only what computes has a cost.
// CHECK: stablehlo.tanh %{{[0-9]+}} {sdy.sharding
module @rows {
  sdy.mesh @mesh = <["x"=8]>
  // x, w, and one buffer for the product and its tanh: 1 MiB each on a device.
  // expected-remark @+1 {{communication 0.0 us; peak 3.00 MiB; no collectives}}
  func.func @main(%x: tensor<4096x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %w: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
      -> (tensor<4096x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<4096x512xf32>
    return %1 : tensor<4096x512xf32>
  }
}

// -----

// The contracted dimension split: partial sums of 1 MiB, all-reduced. Each of 8 devices sends 2 x 7/8 of it.
// CHECK-LABEL: module @contracted
module @contracted {
  sdy.mesh @mesh = <["x"=8]>
  // expected-remark @+1 {{all-reduce 1.75 MiB in 1}}
  func.func @main(%x: tensor<512x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                  %w: tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    // expected-remark @+1 {{all-reduce of 1.75 MiB over x: }}
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<512x65536xf32>, tensor<65536x512xf32>) -> tensor<512x512xf32>
    return %0 : tensor<512x512xf32>
  }
}
