// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

// expected-error @+1 {{rhino.hosted must be true or false, got "yes" (argument 0)}}
func.func @main(%a: tensor<4x8xf32> {rhino.hosted = "yes"}) -> tensor<4x8xf32> {
  // expected-error @+1 {{rhino.hosted belongs on a function argument, not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %a {rhino.hosted = true} : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
