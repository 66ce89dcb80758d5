// rhino.plan says what was chosen, what it is predicted to cost, and what lost; rhino.cluster says for what.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1" | filecheck %s
// The attributes are the dialect's: the verifier reads them back.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1" --rhino-verify | filecheck %s
// A mesh that is given is the only candidate.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=2x2x2" | filecheck %s --check-prefix=GIVEN
// Statistics: the problem's size before and after equal decisions are tied.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1" --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=COUNTS

// CHECK: rhino.cluster = {device = "h100", devices_per_host = 8 : i64, hosts = 1 : i64, name = "dgx-h100:1"}
// CHECK-SAME: rhino.plan = {alternatives = [
// Meshes of one or two axes, the inner one within a host; all do as well here, and the one with the fewest axes is taken.
// Starts of kernels are no computing that is divided: so a third axis is tried.
// CHECK-SAME: {name = "mesh {{2x4|4x2}}", peak_bytes = {{[0-9]+}} : i64, step_time_s = {{.*}} : f64, why = "as fast"}
// CHECK-SAME: cluster = "dgx-h100:1", level = "O1", mesh = {{\[}}["x", 8]], microbatches = 1 : i64
// CHECK-SAME: predicted = {bubble_s = 0.000000e+00 : f64, collectives = {}, comm_bytes = {}, comm_s = 0.000000e+00 : f64, compute_s =
// x and y in eight parts: 64 x 32 f32 and 64 x 16 f32; w whole: 32 x 16 f32.
// CHECK-SAME: memory = {argument_bytes = 3072 : i64, output_bytes = 512 : i64, temp_bytes = 0 : i64}
// CHECK-SAME: peak_bytes = 3584 : i64
// CHECK-SAME: schedule = "none", schema = 1 : i64, search = {candidates = 4 : i64, gap = {{.*}} : f64}, stages = 1 : i64

// GIVEN: alternatives = []
// GIVEN-SAME: mesh = {{\[}}["x", 2], ["y", 2], ["z", 2]]
// GIVEN-SAME: candidates = 1
// GIVEN: sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>

// COUNTS: rhino-plan-sharding
// COUNTS-DAG: 4 candidates
// COUNTS-DAG: 4 decisions
// COUNTS-DAG: 1 ops
func.func @main(%x: tensor<64x32xf32> {rhino.role = "batch"}, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}
