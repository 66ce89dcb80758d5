// Bytecode out, bytecode in, from a file and from standard input: the text is the same as without the detour.
// RUN: rhino-opt %s --emit-bytecode -o %t.mlirbc
// RUN: rhino-opt %t.mlirbc | filecheck %s
// RUN: rhino-opt < %t.mlirbc | filecheck %s
// RUN: rhino-opt %s --emit-bytecode | rhino-opt | filecheck %s

// Attributes of the rhino dialect are builtin data, so bytecode carries them.
// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {rhino.role = "batch"}) -> tensor<4xf32>
// CHECK-NEXT: %[[Y:.*]] = stablehlo.cosine %[[X]]
// CHECK-NEXT: return %[[Y]]
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %0 = stablehlo.cosine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
