// The spellings of one option value: bare, quoted, in braces, as a switch, and quoted around spaces.
// RUN: rhino-opt %s --rhino-classify-args=explain=true 2>&1 | filecheck %s
// RUN: rhino-opt %s --rhino-classify-args=explain 2>&1 | filecheck %s
// RUN: rhino-opt %s --rhino-classify-args="explain='1'" 2>&1 | filecheck %s
// RUN: rhino-opt %s --pass-pipeline="builtin.module(rhino-classify-args{ explain={true} })" 2>&1 | filecheck %s
// RUN: rhino-opt %s --pass-pipeline="builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))" --dump-pass-pipeline 2>&1 | filecheck %s --check-prefix=NATIVE

// CHECK: pass_options.mlir:[[LINE:[0-9]+]]:17: remark: other: scalar
// CHECK-NEXT: func.func @main(%x: tensor<f32>)
// CHECK-NEXT: ^
// NATIVE: builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
