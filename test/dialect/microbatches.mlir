// rhino.microbatches: the loop over the micro-batches, and how many there are.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%a: tensor<i32>) -> tensor<i32> {
  // CHECK: stablehlo.while
  // CHECK-SAME: attributes {rhino.microbatches = {count = 4 : i64}}
  %r = stablehlo.while(%i = %a) : tensor<i32> attributes {rhino.microbatches = {count = 4 : i64}}
  cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j : tensor<i32>
  }
  return %r : tensor<i32>
}
