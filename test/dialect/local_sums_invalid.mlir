// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

func.func @main(%a: tensor<4x3xf32>) {
  // expected-error @+1 {{rhino.sums belongs on a product, a reduction or a scatter, not on 'stablehlo.negate'}}
  %0 = stablehlo.negate %a {rhino.sums = 4 : i64} : tensor<4x3xf32>
  // expected-error @+1 {{rhino.sums is 8, and no dimension of the result has that size}}
  %1 = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] {rhino.sums = 8 : i64} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
  // expected-error @+1 {{rhino.sums must be at least 2, got 1}}
  %2 = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] {rhino.sums = 1 : i64} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
  return
}
