// Long constants are left out on request, so that a module can be read.
// RUN: rhino-opt %s --mlir-elide-elementsattrs-if-larger=4 | filecheck %s
// RUN: not rhino-opt %s --mlir-elide-elementsattrs-if-larger=few 2>&1 | filecheck %s --check-prefix=ERROR

// CHECK: stablehlo.constant dense<[1, 2, 3, 4]>
// CHECK: stablehlo.constant dense_resource<__elided__>
// ERROR: error: --mlir-elide-elementsattrs-if-larger is 'few' but must be an integer
func.func @main() {
  %0 = stablehlo.constant dense<[1, 2, 3, 4]> : tensor<4xi32>
  %1 = stablehlo.constant dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
  return
}
