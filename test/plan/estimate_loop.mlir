// What runs in a loop costs as often as it runs; costs on its ops are of one execution.
// RUN: rhino-opt %s --rhino-estimate=topology=dgx-h100:1 --verify-diagnostics | filecheck %s

sdy.mesh @mesh = <["x"=8]>
// Six all-reduces of 16 MiB, of which each of 8 devices sends 2 x 7/8.
// expected-remark @+1 {{all-reduce 168.00 MiB in 6}}
func.func @main(%x: tensor<512x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                %w: tensor<8192x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<512x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %out:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<512x8192xf32>
      attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {}]>]>}
  cond {
    %six = stablehlo.constant dense<6> : tensor<i32>
    %more = stablehlo.compare LT, %i, %six : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %part = sdy.sharding_constraint %h <@mesh, [{}, {"x"}]> : tensor<512x8192xf32>
    // CHECK: stablehlo.dot_general {{.*}}rhino.cost = {bytes = {{[0-9]+}} : i64, flops = 8589934592 : i64, time_s = {{.*}} : f64, trips = 6 : i64}
    // expected-remark @+1 {{all-reduce of 28.00 MiB over x, 6 times: }}
    %dot = stablehlo.dot_general %part, %w, contracting_dims = [1] x [0] : (tensor<512x8192xf32>, tensor<8192x8192xf32>) -> tensor<512x8192xf32>
    %next = stablehlo.tanh %dot : tensor<512x8192xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<512x8192xf32>
  }
  return %out#1 : tensor<512x8192xf32>
}
