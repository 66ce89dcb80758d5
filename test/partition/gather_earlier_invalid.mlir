// What a trip gathers stays of what the loop changes, what is the same in each trip, what it computes itself, and of rows
// by a number that follows from data; so does what is cut off and not gathered.
// RUN: rhino-opt %s --rhino-gather-earlier | filecheck %s
// RUN: rhino-opt %s --rhino-gather-earlier --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not rhino-opt %s --rhino-gather-earlier=first=some 2>&1 | filecheck %s --check-prefix=OPTION
// NONE: (S) 0 gathers
// OPTION: first

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @left
// CHECK: do {
// CHECK: sdy.sharding_constraint {{.*}} tensor<1x8xf32>
// CHECK: stablehlo.return %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}} :
func.func @left(%x: tensor<3x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %k: tensor<i32>) -> tensor<1x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<1x8xf32>
  %r:5 = stablehlo.while(%i = %zero, %changed = %x, %kept = %x, %sum = %f, %at = %k) : tensor<i32>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>
  attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"y"}]>, <@mesh, [{}, {"y"}]>, <@mesh, [{}, {"y"}]>, <@mesh, []>]>}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a = stablehlo.dynamic_slice %changed, %i, %zero, sizes = [1, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %a1 = sdy.sharding_constraint %a <@mesh, [{}, {}]> : tensor<1x8xf32>
    %b = stablehlo.dynamic_slice %kept, %zero, %zero, sizes = [1, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %b1 = sdy.sharding_constraint %b <@mesh, [{}, {}]> : tensor<1x8xf32>
    %c = stablehlo.dynamic_slice %kept, %i, %zero, sizes = [1, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %c1 = sdy.sharding_constraint %c <@mesh, [{}, {"y", "x"}]> : tensor<1x8xf32>
    %d = stablehlo.dynamic_slice %kept, %at, %zero, sizes = [1, 8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %d1 = sdy.sharding_constraint %d <@mesh, [{}, {}]> : tensor<1x8xf32>
    %s1 = sdy.sharding_constraint %sum <@mesh, [{}, {}]> : tensor<1x8xf32>
    %e0 = stablehlo.add %a1, %b1 : tensor<1x8xf32>
    %e1 = stablehlo.add %c1, %d1 : tensor<1x8xf32>
    %e2 = stablehlo.add %e0, %s1 : tensor<1x8xf32>
    %e3 = stablehlo.add %e1, %e2 : tensor<1x8xf32>
    %next = stablehlo.dynamic_update_slice %changed, %e3, %i, %zero : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
    %picked = stablehlo.slice %e3 [0:1, 0:1] : (tensor<1x8xf32>) -> tensor<1x1xf32>
    %scalar = stablehlo.reshape %picked : (tensor<1x1xf32>) -> tensor<f32>
    %index = stablehlo.convert %scalar : (tensor<f32>) -> tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %kept, %e3, %index : tensor<i32>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>
  }
  return %r#3 : tensor<1x8xf32>
}
