// The generic form prints, and parses back to the same module.
// RUN: rhino-opt %s --mlir-print-op-generic | filecheck %s
// RUN: rhino-opt %s --mlir-print-op-generic | rhino-opt | filecheck %s --check-prefix=BACK

// CHECK: "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "main"}>
// CHECK: "stablehlo.sine"
// BACK: func.func @main
// BACK: stablehlo.sine
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
