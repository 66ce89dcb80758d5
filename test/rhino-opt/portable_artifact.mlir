// A portable artifact is read as the StableHLO it was made from, and may be written for an older version.
// RUN: rhino-opt %s --emit-portable-artifact -o %t.mlirbc
// RUN: rhino-opt %t.mlirbc --rhino-verify | filecheck %s
// RUN: rhino-opt %s --emit-portable-artifact=1.0.0 | rhino-opt | filecheck %s
// RUN: not rhino-opt %s --emit-portable-artifact=9.9.9 2>&1 | filecheck %s --check-prefix=VERSION
// RUN: not rhino-opt %s --emit-portable-artifact=newest 2>&1 | filecheck %s --check-prefix=VERSION

// VERSION: rhino-opt: error: '{{9.9.9|newest}}' is no version of StableHLO that can be written (give {{[0-9.]+}} to {{[0-9.]+}})

// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32>
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[X]] : tensor<4xf32>
// CHECK-NEXT: return %[[Y]] : tensor<4xf32>
func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
