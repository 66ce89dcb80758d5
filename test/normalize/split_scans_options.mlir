// A loop has at most as many pieces as trips; one piece is the loop itself; `force` splits loops without parameters.
// RUN: rhino-opt %s --rhino-split-scans=count=9 | filecheck %s --check-prefix=MANY
// RUN: rhino-opt %s --rhino-split-scans=count=1 | filecheck %s --check-prefix=ONE
// RUN: rhino-opt %s --rhino-split-scans=count=2 | filecheck %s --check-prefix=TWO
// RUN: rhino-opt %s --rhino-split-scans="count=2 force=true" | filecheck %s --check-prefix=FORCE
// RUN: not rhino-opt %s --rhino-split-scans=count=0 2>&1 | filecheck %s --check-prefix=NONE

// MANY-COUNT-4: stablehlo.slice %arg0 [{{[0-3]}}:{{[1-4]}}, 0:8] : (tensor<4x8xf32>) -> tensor<1x8xf32>
// MANY-COUNT-5: stablehlo.while
// MANY-NOT: stablehlo.while
// ONE-NOT: stablehlo.slice
// ONE-COUNT-2: stablehlo.while
// ONE-NOT: stablehlo.while
// TWO-COUNT-3: stablehlo.while
// TWO-NOT: stablehlo.while
// FORCE-COUNT-4: stablehlo.while
// FORCE-NOT: stablehlo.while
// NONE: error: 'rhino-split-scans' needs a count of at least 1, got 0
// NONE: note: give count=2 or more
func.func @main(%w: tensor<4x8xf32> {rhino.role = "param"}, %x: tensor<8xf32> {rhino.role = "batch"},
                %data: tensor<4x8xf32> {rhino.role = "batch"}) -> (tensor<8xf32>, tensor<8xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  %s:2 = stablehlo.while(%i = %c0, %h = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %more = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dynamic_slice %data, %i, %c0, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  return %r#1, %s#1 : tensor<8xf32>, tensor<8xf32>
}
