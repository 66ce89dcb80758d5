// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

func.func @main(%a: tensor<4xf32>) {
  // expected-error @+1 {{rhino.cost.time_s must be at least 0, got -1}}
  %0 = stablehlo.negate %a {rhino.cost = {time_s = -1.0 : f64}} : tensor<4xf32>
  // Seconds are floats, also when they are whole.
  // expected-error @+1 {{rhino.cost.time_s must be a float, got 0}}
  %1 = stablehlo.negate %a {rhino.cost = {time_s = 0 : i64}} : tensor<4xf32>
  // Not a number is not a cost.
  // expected-error @+1 {{rhino.cost.time_s must be a finite float, got nan}}
  %2 = stablehlo.negate %a {rhino.cost = {time_s = 0x7FF8000000000000 : f64}} : tensor<4xf32>
  // expected-error @+2 {{rhino.cost has no key 'time_s'}}
  // expected-error @+1 {{rhino.cost.flops must be an integer, got true}}
  %3 = stablehlo.negate %a {rhino.cost = {flops = true}} : tensor<4xf32>
  return
}
