// rhino.returned: the place of an argument in the user's pytrees.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: func.func @main(%{{.*}}: tensor<4xf32> {rhino.returned = {block = 0 : i64, results = [0]}})
func.func @main(%a: tensor<4xf32> {rhino.returned = {block = 0 : i64, results = [0]}}) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
