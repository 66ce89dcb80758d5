// rhino-plan-pipeline: state that stages keep already stays on them, split as it is; the cut follows.
// RUN: rhino-opt %s --rhino-plan-pipeline='topology=dgx-h100:1 stages=2 microbatches=2 mesh=4' --verify-diagnostics --split-input-file | filecheck %s

// Free, the cut would be in the middle, and weights whole or split alike.
// CHECK-LABEL: func.func @main
// CHECK-SAME: "stage0", tensor<64x64xf32>
// CHECK-SAME: "stage0", tensor<64x64xf32>
// CHECK-SAME: "stage0", tensor<64x64xf32>, sharding=<@mesh, [{}, {"x"}]>>
// CHECK-SAME: "stage1", tensor<64x64xf32>, sharding=<@mesh, [{"x"}, {}]>>
// CHECK-SAME: rhino.argument = {index = 4 : i64}
func.func @main(
    %w0: tensor<64x64xf32> {rhino.role = "param"}, %w1: tensor<64x64xf32> {rhino.role = "param"},
    %w2: tensor<64x64xf32> {rhino.role = "param", rhino.pin = [{sharding = [[], ["x"]], stage = 0 : i64}]},
    %w3: tensor<64x64xf32> {rhino.role = "param", rhino.pin = [{sharding = [["x"], []], stage = 1 : i64}]},
    %x: tensor<32x64xf32> {rhino.role = "batch"}) -> tensor<32x64xf32> {
  %a = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %c = stablehlo.dot_general %b, %w2, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %d = stablehlo.dot_general %c, %w3, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  return %d : tensor<32x64xf32>
}
