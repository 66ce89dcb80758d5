// rhino.pin: the stage that keeps an argument or result, or rows of it, and how it is split there.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: func.func @main(%{{.*}}: tensor<4x8xf32> {rhino.pin = [{sharding = {{\[\[}}"x"], []], stage = 1 : i64}]}
// CHECK-SAME: rhino.pin = [{sharding = {{\[\[}}], []], slice = {{\[\[}}0, 2]], stage = 0 : i64}, {sharding
// CHECK-SAME: -> (tensor<4x8xf32> {rhino.pin = [{sharding
func.func @main(%a: tensor<4x8xf32> {rhino.pin = [{sharding = [["x"], []], stage = 1 : i64}]},
                %b: tensor<4x8xf32> {rhino.pin = [{sharding = [[], []], slice = [[0 : i64, 2 : i64]], stage = 0 : i64},
                                                  {sharding = [[], []], slice = [[2 : i64, 4 : i64]], stage = 1 : i64}]})
    -> (tensor<4x8xf32> {rhino.pin = [{sharding = [["x"], []], stage = 1 : i64}]}) {
  return %a : tensor<4x8xf32>
}
