// rhino.stage: the stage and phase of an operation, before fragments exist; inside regions too.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: stablehlo.negate %{{.*}} {rhino.stage = {phase = "forward", stage = 0 : i64}}
  %0 = stablehlo.negate %a {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
  // CHECK: stablehlo.tanh %{{.*}} {rhino.stage = {phase = "backward", stage = 1 : i64}}
  %1 = stablehlo.tanh %0 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4xf32>
  return %1 : tensor<4xf32>
}
