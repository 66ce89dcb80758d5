// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

func.func @main(%a: tensor<4xf32>) {
  // expected-error @+1 {{rhino.stage.stage must be at least 0, got -1}}
  %0 = stablehlo.negate %a {rhino.stage = {phase = "forward", stage = -1 : i64}} : tensor<4xf32>
  // expected-error @+1 {{rhino.stage has no key 'phase'}}
  %1 = stablehlo.negate %a {rhino.stage = {stage = 1 : i64}} : tensor<4xf32>
  // expected-error @+1 {{rhino.stage must be a dictionary, got 1}}
  %2 = stablehlo.negate %a {rhino.stage = 1 : i64} : tensor<4xf32>
  // expected-error @+1 {{rhino.stage.microbatch is not known; known: stage, phase}}
  %3 = stablehlo.negate %a {rhino.stage = {phase = "update", stage = 1 : i64, microbatch = 0 : i64}} : tensor<4xf32>
  return
}

// -----

// Every operation of a region is checked as well.
func.func @main(%a: tensor<i32>, %b: tensor<4xf32>) {
  %0 = "stablehlo.case"(%a) ({
    // expected-error @+1 {{rhino.stage.phase must be one of "prepare", "forward", "backward", "update", got "sideways"}}
    %1 = stablehlo.negate %b {rhino.stage = {phase = "sideways", stage = 0 : i64}} : tensor<4xf32>
    stablehlo.return %1 : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return
}
