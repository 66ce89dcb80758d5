// rhino.name: the name in the user's program, on arguments and results.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: func.func @main(%{{.*}}: tensor<4xf32> {rhino.name = "state['params']['wte']"})
// CHECK-SAME: -> (tensor<4xf32> {rhino.name = "loss"})
func.func @main(%a: tensor<4xf32> {rhino.name = "state['params']['wte']"}) -> (tensor<4xf32> {rhino.name = "loss"}) {
  return %a : tensor<4xf32>
}
