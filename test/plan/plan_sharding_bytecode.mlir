// Planning a module read from bytecode, and writing the plan as bytecode, gives the same text as planning text.
// RUN: rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" -o %t.text.mlir
// RUN: rhino-opt %s --emit-bytecode -o %t.mlirbc
// RUN: rhino-opt %t.mlirbc --rhino-plan-sharding="topology=dgx-h100:1 mesh=8" --emit-bytecode -o %t.planned.mlirbc
// RUN: rhino-opt %t.planned.mlirbc -o %t.bytecode.mlir
// RUN: diff %t.text.mlir %t.bytecode.mlir
// RUN: filecheck %s --input-file %t.bytecode.mlir

// CHECK: sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<64x32xf32> {rhino.role = "batch"}, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}
