// rhino.microbatches: the loop over micro-batches.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: stablehlo.while
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64}}
  %0:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<4xf32> attributes {rhino.microbatches = {count = 4 : i64}}
  cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %x : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
