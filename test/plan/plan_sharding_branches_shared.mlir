// A value that several blocks read in another layout is converted where each of them can read it.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" | filecheck %s

// Both branches read x in another layout than it is kept in, and so does what follows. A copy of one branch is of no use
// in the other or after them: each makes its own.
// CHECK-LABEL: func.func @main(%{{[^:]*}}: tensor<i32>
// CHECK-SAME: %[[X:[^:]*]]: tensor<64x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
// CHECK: "stablehlo.case"
// CHECK: %[[FIRST:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]>
// CHECK: stablehlo.dot %[[FIRST]], %
// CHECK: }, {
// CHECK: %[[SECOND:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]>
// CHECK: stablehlo.dot %[[SECOND]], %
// CHECK: %[[AFTER:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]>
// CHECK: stablehlo.dot %[[AFTER]], %
sdy.mesh @mesh = <["x"=8]>
func.func @main(%which: tensor<i32>, %x: tensor<64x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %up: tensor<8192x32768xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %down: tensor<32768x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<64x8192xbf16> {
  %0 = "stablehlo.case"(%which) ({
    %1 = stablehlo.dot %x, %up : (tensor<64x8192xbf16>, tensor<8192x32768xbf16>) -> tensor<64x32768xbf16>
    stablehlo.return %1 : tensor<64x32768xbf16>
  }, {
    %1 = stablehlo.dot %x, %up : (tensor<64x8192xbf16>, tensor<8192x32768xbf16>) -> tensor<64x32768xbf16>
    stablehlo.return %1 : tensor<64x32768xbf16>
  }) : (tensor<i32>) -> tensor<64x32768xbf16>
  %5 = stablehlo.dot %x, %up : (tensor<64x8192xbf16>, tensor<8192x32768xbf16>) -> tensor<64x32768xbf16>
  %6 = stablehlo.add %0, %5 : tensor<64x32768xbf16>
  %7 = stablehlo.dot %6, %down : (tensor<64x32768xbf16>, tensor<32768x8192xbf16>) -> tensor<64x8192xbf16>
  return %7 : tensor<64x8192xbf16>
}
