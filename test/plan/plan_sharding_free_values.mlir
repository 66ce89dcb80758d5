// Constants, iotas and what is made of them alone fit any layout: their shardings stay open, and nothing is sent for them.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// CHECK: comm_bytes = {}
// CHECK: stablehlo.iota dim = 1
// CHECK-NOT: sdy.sharding_constraint
// CHECK: stablehlo.add {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>
func.func @main(%x: tensor<64x512xf32> {rhino.role = "batch"}) -> tensor<64x512xf32> {
  %0 = stablehlo.iota dim = 1 : tensor<64x512xf32>
  %1 = stablehlo.constant dense<2.0> : tensor<64x512xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<64x512xf32>
  %3 = stablehlo.add %x, %2 : tensor<64x512xf32>
  return %3 : tensor<64x512xf32>
}
