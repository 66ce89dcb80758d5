// Level O0 decides nothing: Shardy propagates the shardings that are there, and what they come to is predicted: nothing
// splits the result, so that all of its partial sums are added on every device, as XLA does.

// RUN: rhino-opt %s --rhino-plan-sharding='topology=dgx-h100:1 level=O0' | filecheck %s
// RUN: not rhino-opt %S/plan_sharding_megatron.mlir --rhino-plan-sharding='topology=dgx-h100:1 level=O0' 2>&1 | filecheck %s --check-prefix=NONE

// CHECK: rhino.plan = {{.*}}level = "O0"{{.*}}collectives = {"all-reduce" = 1 : i64}
sdy.mesh @mesh = <["x"=8]>

// CHECK: func.func @main(%arg0: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}
// CHECK-SAME: %arg1: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
func.func @main(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %w: tensor<8x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}

// NONE: error: level O0 needs sdy.mesh @mesh and shardings over it
