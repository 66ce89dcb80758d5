// rhino-plan-stages: forward ops in two stages, backward where their forward is, the rest with the parameters.
// RUN: rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 balance=0.5" | filecheck %s
// RUN: rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 balance=0.5" --rhino-form-fragments --rhino-verify | filecheck %s --check-prefix=FRAGMENTS
// RUN: rhino-opt %s --rhino-plan-stages="stages=2 topology=dgx-h100:1 schedule=gpipe exposure=0.5" --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=COUNTS

// COUNTS: 2 stages
// COUNTS: 1 proved-optimal

// FRAGMENTS: origin=["forward"], stage=0
// FRAGMENTS: origin=["backward"(1)], stage=0

// CHECK-LABEL: func.func @main
func.func @main(%w0: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %w1: tensor<64x64xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %x: tensor<8x64xf32> {rhino.role = "batch"})
    -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>) {
  // Constants, and views of the batch, are cloned: they have no stage.
  // CHECK: stablehlo.constant dense<0> : tensor<i32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.constant dense<0.0> : tensor<64x64xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<8x64xf32>) -> tensor<4x2x64xf32>
  %rows = stablehlo.reshape %x : (tensor<8x64xf32>) -> tensor<4x2x64xf32>
  // A cast before the loop is made where its parameter is.
  // CHECK: stablehlo.convert %arg1 {rhino.stage = {phase = "prepare", stage = 1 : i64}}
  %low = stablehlo.convert %w1 : (tensor<64x64xf32>) -> tensor<64x64xbf16>
  // CHECK: stablehlo.while
  %r:4 = stablehlo.while(%i = %c0, %a0 = %sum, %a1 = %sum, %loss = %zero) : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>
      attributes {rhino.microbatches = {count = 2 : i64}}
  // The condition has no stages.
  // CHECK: stablehlo.compare LT, %{{[^ ]*}}, %{{[^ ]*}} : (tensor<i32>
  cond {
    %more = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // CHECK: stablehlo.dynamic_slice {{.*}} : (tensor<4x2x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
    %s = stablehlo.dynamic_slice %rows, %c0, %i, %c0, sizes = [4, 1, 64] : (tensor<4x2x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x1x64xf32>
    %b = stablehlo.reshape %s : (tensor<4x1x64xf32>) -> tensor<4x64xf32>
    // CHECK: stablehlo.dot_general {{.*}} {rhino.stage = {phase = "forward", stage = 0 : i64}}
    %h = stablehlo.dot_general %b, %w0, contracting_dims = [1] x [0] : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
    // CHECK: stablehlo.tanh {{.*}}stage = 0
    %t = stablehlo.tanh %h : tensor<4x64xf32>
    %tl = stablehlo.convert %t : (tensor<4x64xf32>) -> tensor<4x64xbf16>
    // CHECK: stablehlo.dot_general {{.*}} {rhino.stage = {phase = "forward", stage = 1 : i64}}
    %y = stablehlo.dot_general %tl, %low, contracting_dims = [1] x [0] : (tensor<4x64xbf16>, tensor<64x64xbf16>) -> tensor<4x64xf32>
    %yy = stablehlo.multiply %y, %y : tensor<4x64xf32>
    %l = stablehlo.reduce(%yy init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x64xf32>, tensor<f32>) -> tensor<f32>
    // The loss does not depend on this: backward, on the last stage.
    // CHECK: stablehlo.add %[[Y:[0-9]+]], %[[Y]] {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<4x64xf32>
    %dy = stablehlo.add %y, %y : tensor<4x64xf32>
    %dyl = stablehlo.convert %dy : (tensor<4x64xf32>) -> tensor<4x64xbf16>
    // CHECK: stablehlo.dot_general {{.*}}contracting_dims = [0] x [0]{{.*}}{rhino.stage = {phase = "backward", stage = 1 : i64}}
    %g1 = stablehlo.dot_general %tl, %dyl, contracting_dims = [0] x [0] : (tensor<4x64xbf16>, tensor<4x64xbf16>) -> tensor<64x64xf32>
    // CHECK: stablehlo.dot_general {{.*}}contracting_dims = [1] x [1]{{.*}}{rhino.stage = {phase = "backward", stage = 1 : i64}}
    %dt = stablehlo.dot_general %dyl, %low, contracting_dims = [1] x [1] : (tensor<4x64xbf16>, tensor<64x64xbf16>) -> tensor<4x64xf32>
    %t2 = stablehlo.multiply %t, %t : tensor<4x64xf32>
    // CHECK: stablehlo.subtract {{.*}} {rhino.stage = {phase = "backward", stage = 0 : i64}}
    %dh = stablehlo.subtract %dt, %t2 : tensor<4x64xf32>
    // CHECK: stablehlo.dot_general {{.*}}contracting_dims = [0] x [0]{{.*}}{rhino.stage = {phase = "backward", stage = 0 : i64}}
    %g0 = stablehlo.dot_general %b, %dh, contracting_dims = [0] x [0] : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<64x64xf32>
    // CHECK: stablehlo.add %iterArg_{{.*}}stage = 0
    %n0 = stablehlo.add %a0, %g0 : tensor<64x64xf32>
    // CHECK: stablehlo.add %iterArg_{{.*}}stage = 1
    %n1 = stablehlo.add %a1, %g1 : tensor<64x64xf32>
    // CHECK: stablehlo.add %iterArg_{{.*}}{rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<f32>
    %nl = stablehlo.add %loss, %l : tensor<f32>
    // CHECK: stablehlo.add %iterArg, %c{{[^ ]*}} : tensor<i32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %n0, %n1, %nl : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>
  }
  // CHECK: stablehlo.subtract %arg0, {{.*}}{rhino.stage = {phase = "update", stage = 0 : i64}}
  %u0 = stablehlo.subtract %w0, %r#1 : tensor<64x64xf32>
  // CHECK: stablehlo.subtract %arg1, {{.*}}{rhino.stage = {phase = "update", stage = 1 : i64}}
  %u1 = stablehlo.subtract %w1, %r#2 : tensor<64x64xf32>
  return %u0, %u1, %r#3 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>
}
