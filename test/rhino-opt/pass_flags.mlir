// Passes as flags run in the order given, with one dash or two; the dump shows the pipeline they stand for.
// RUN: rhino-opt %s --inline -symbol-dce --rhino-classify-args=explain=false --dump-pass-pipeline > %t 2> %t.err
// RUN: filecheck %s --input-file %t
// RUN: filecheck %s --check-prefix=DUMP --input-file %t.err

// An option at its default is not printed; C++ passes keep what was written.
// DUMP: builtin.module(inline,symbol-dce,rhino-classify-args)

// CHECK: func.func @main
// CHECK: stablehlo.tanh
// CHECK-NOT: @callee
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @callee(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @callee(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
