// More chunks than max-chunks are left alone.
// RUN: rhino-opt %s --rhino-expose-strided-dims=max-chunks=2 --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=TWO
// RUN: rhino-opt %s --rhino-expose-strided-dims=max-chunks=3 --mlir-pass-statistics 2>&1 | filecheck %s --check-prefix=THREE

// The text goes to the standard output, the statistics after it.
// TWO: @main(%{{.*}}: tensor<8x6xf32> {
// TWO: (S) 1 refused
// THREE: @main(%{{.*}}: tensor<8x3x2xf32> {
// THREE: (S) 1 arguments
func.func @main(%w: tensor<8x6xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x2xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %1 = stablehlo.slice %0 [0:4, 0:2] : (tensor<4x6xf32>) -> tensor<4x2xf32>
  %2 = stablehlo.slice %0 [0:4, 2:4] : (tensor<4x6xf32>) -> tensor<4x2xf32>
  %3 = stablehlo.slice %0 [0:4, 4:6] : (tensor<4x6xf32>) -> tensor<4x2xf32>
  %4 = stablehlo.multiply %1, %2 : tensor<4x2xf32>
  %5 = stablehlo.multiply %4, %3 : tensor<4x2xf32>
  return %5 : tensor<4x2xf32>
}
