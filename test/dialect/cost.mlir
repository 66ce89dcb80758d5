// rhino.cost: what the cost model predicts for one execution of an operation.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%a: tensor<4xf32>) {
  // CHECK: stablehlo.negate %{{.*}} {rhino.cost = {bytes = 32 : i64, flops = 4 : i64, time_s = 1.000000e-09 : f64}}
  %0 = stablehlo.negate %a {rhino.cost = {time_s = 1.0e-9 : f64, flops = 4 : i64, bytes = 32 : i64}} : tensor<4xf32>
  return
}
