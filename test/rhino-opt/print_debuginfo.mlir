// Locations print on request: the file as given on the command line, and the names jax gives to arguments.
// RUN: rhino-opt %s --mlir-print-debuginfo --mlir-print-local-scope | filecheck %s --check-prefixes=CHECK,LOCATION
// RUN: rhino-opt %s --mlir-use-nameloc-as-prefix | filecheck %s --check-prefix=NAMED

// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> loc("weights"("{{.*}}print_debuginfo.mlir":8:17)))
// LOCATION: stablehlo.sine %[[X]] : tensor<4xf32> loc("{{.*}}print_debuginfo.mlir":10:8)
// NAMED: func.func @main(%weights: tensor<4xf32>)
func.func @main(%x: tensor<4xf32> loc("weights"("print_debuginfo.mlir":8:17))) -> tensor<4xf32> {
  // The next line is 10.
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
