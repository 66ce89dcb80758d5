// RUN: rhino-opt %s --rhino-verify --verify-diagnostics

// expected-error @+1 {{rhino.distributed belongs on an operation, not on a function argument}}
func.func @main(%a: tensor<4x8xf32> {rhino.distributed = 0 : i64}, %b: tensor<f32>) {
  // expected-error @+1 {{rhino.distributed is dimension 2, but the result has 2}}
  %0 = stablehlo.negate %a {rhino.distributed = 2 : i64} : tensor<4x8xf32>
  // expected-error @+1 {{rhino.distributed must be at least 0, got -1}}
  %1 = stablehlo.negate %a {rhino.distributed = -1 : i64} : tensor<4x8xf32>
  // expected-error @+1 {{rhino.distributed is of an operation with one result, not of 'stablehlo.optimization_barrier'}}
  %2:2 = stablehlo.optimization_barrier {rhino.distributed = 0 : i64} %a, %b : tensor<4x8xf32>, tensor<f32>
  return
}
