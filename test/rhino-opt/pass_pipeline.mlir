// One pipeline mixes Python and C++ passes, at module and function level, in the order written.
// RUN: rhino-opt %s --pass-pipeline='builtin.module(rhino-verify, func.func(cse, sdy-populate-op-sharding-rules), rhino-classify-args)' --dump-pass-pipeline > %t 2> %t.err
// RUN: filecheck %s --input-file %t
// RUN: filecheck %s --check-prefix=DUMP --input-file %t.err

// Each pass is a step of its own, so the nested pair is printed as two.
// DUMP: Pass Manager with 4 passes:
// DUMP-NEXT: builtin.module(rhino-verify,func.func(cse),func.func(sdy-populate-op-sharding-rules),rhino-classify-args)

// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {rhino.role = "{{.*}}"})
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // cse merged the two, and the rule is on what is left.
  // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[X]], %[[X]] {sdy.sharding_rule = {{.*}}}
  // CHECK-NEXT: stablehlo.multiply %[[A]], %[[A]]
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
