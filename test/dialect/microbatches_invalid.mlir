// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

func.func @main(%a: tensor<4xf32>) {
  // expected-error @+1 {{rhino.microbatches belongs on 'stablehlo.while', not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %a {rhino.microbatches = {count = 2 : i64}} : tensor<4xf32>
  // expected-error @+1 {{rhino.microbatches.count must be at least 1, got 0}}
  %1 = stablehlo.negate %a {rhino.microbatches = {count = 0 : i64}} : tensor<4xf32>
  // expected-error @+1 {{rhino.microbatches has no key 'count'}}
  %2 = stablehlo.negate %a {rhino.microbatches = {}} : tensor<4xf32>
  return
}
