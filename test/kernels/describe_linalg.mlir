// Linear algebra, the largest elements and Fourier transforms: which dimensions of calls may be split.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// Two dimensions of batch; the matrix stays whole. 15 matrices of 8 x 8: n^3 / 3 operations each.
// CHECK-LABEL: module @cholesky
// CHECK: stablehlo.custom_call @cusolver_potrf_ffi
// CHECK-SAME: rhino.kernel = {bytes = 7740 : i64, flops = 2550 : i64, name = "cholesky", rate = "vector", type = "f32"}
// CHECK-SAME: <([i, j, k, l])->([i, j, m, n], [i, j]) {i=3, j=5, k=8, l=8, m=8, n=8} need_replication={k, l, m, n}, custom>
module @cholesky {
  func.func @main(%a: tensor<3x5x8x8xf32>) -> tensor<3x5x8x8xf32> {
    %0:2 = stablehlo.custom_call @cusolver_potrf_ffi(%a) {mhlo.backend_config = {lower = true}} : (tensor<3x5x8x8xf32>) -> (tensor<3x5x8x8xf32>, tensor<3x5xi32>)
    return %0#0 : tensor<3x5x8x8xf32>
  }
}

// -----

// Right-hand sides do not need each other: their columns (l) may be split where the matrix stands on the left, their
// rows where it stands on the right.
// CHECK-LABEL: module @triangular
// CHECK: stablehlo.custom_call @lapack_strsm_ffi
// CHECK-SAME: flops = 128 : i64, name = "triangular-solve"
// CHECK-SAME: <([i, j], [k, l])->([m, l]) {i=8, j=8, k=8, l=2, m=8} need_replication={i, j, k, m}, custom>
// CHECK: "stablehlo.triangular_solve"
// CHECK-SAME: flops = 128 : i64, name = "triangular-solve"
// CHECK-SAME: <([i, j], [k, l])->([k, m]) {i=8, j=8, k=2, l=8, m=8} need_replication={i, j, l, m}, custom>
module @triangular {
  func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x2xf32>, %c: tensor<2x8xf32>) -> (tensor<8x2xf32>, tensor<2x8xf32>) {
    %0 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {mhlo.backend_config = {diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8}} : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
    %1 = "stablehlo.triangular_solve"(%a, %c) <{left_side = false, lower = false, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    return %0, %1 : tensor<8x2xf32>, tensor<2x8xf32>
  }
}

// -----

// Reflectors applied from the right: to rows (k) that do not need each other.
// CHECK-LABEL: module @reflectors
// CHECK: stablehlo.custom_call @cusolver_ormqr_ffi
// CHECK-SAME: flops = 3600 : i64, name = "householder-apply"
// CHECK-SAME: <([i, j, k], [i, l], [i, m, n])->([i, m, o]) {i=3, j=8, k=6, l=6, m=10, n=8, o=8} need_replication={j, k, l, n, o}, custom>
module @reflectors {
  func.func @main(%a: tensor<3x8x6xf32>, %t: tensor<3x6xf32>, %c: tensor<3x10x8xf32>) -> tensor<3x10x8xf32> {
    %0 = stablehlo.custom_call @cusolver_ormqr_ffi(%a, %t, %c) {mhlo.backend_config = {left = false, transpose = true}} : (tensor<3x8x6xf32>, tensor<3x6xf32>, tensor<3x10x8xf32>) -> tensor<3x10x8xf32>
    return %0 : tensor<3x10x8xf32>
  }
}

// -----

// Of tridiagonal systems the columns of the right-hand sides (m), not the diagonals.
// CHECK-LABEL: module @tridiagonal
// CHECK: stablehlo.custom_call @cusparse_gtsv2_ffi
// CHECK-SAME: <([i, j], [i, k], [i, l], [i, m, n])->([i, o, n]) {i=3, j=8, k=8, l=8, m=8, n=6, o=8} need_replication={j, k, l, m, o}, custom>
module @tridiagonal {
  func.func @main(%d: tensor<3x8xf32>, %b: tensor<3x8x6xf32>) -> tensor<3x8x6xf32> {
    %0 = stablehlo.custom_call @cusparse_gtsv2_ffi(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<3x8xf32>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3x8x6xf32>) -> tensor<3x8x6xf32>
    return %0 : tensor<3x8x6xf32>
  }
}

// -----

// Without singular vectors there is less to do: 4 m n^2 - 4 n^3 / 3 instead of 6 m n^2 + 20 n^3.
// CHECK-LABEL: module @singular
// CHECK: @lapack_sgesdd_ffi
// CHECK-SAME: flops = 864 : i64, name = "svd"
// CHECK: @cusolver_gesvd_ffi
// CHECK-SAME: flops = 6048 : i64, name = "svd"
module @singular {
  func.func @main(%a: tensor<1x8x6xf32>) -> (tensor<1x6xf32>, tensor<1x6xf32>) {
    %0:5 = stablehlo.custom_call @lapack_sgesdd_ffi(%a) {mhlo.backend_config = {mode = 78 : ui8}} : (tensor<1x8x6xf32>) -> (tensor<1x8x6xf32>, tensor<1x6xf32>, tensor<1x8x8xf32>, tensor<1x6x6xf32>, tensor<1xi32>)
    %1:5 = stablehlo.custom_call @cusolver_gesvd_ffi(%a) {mhlo.backend_config = {compute_uv = true, full_matrices = false, transposed = false}} : (tensor<1x8x6xf32>) -> (tensor<1x8x6xf32>, tensor<1x6xf32>, tensor<1x8x6xf32>, tensor<1x6x6xf32>, tensor<1xi32>)
    return %0#1, %1#1 : tensor<1x6xf32>, tensor<1x6xf32>
  }
}

// -----

// The largest of each row; an approximate choice along the first dimension, whose start values have none.
// CHECK-LABEL: module @largest
// CHECK: chlo.top_k
// CHECK-SAME: flops = 256 : i64, name = "top-k"
// CHECK-SAME: <([i, j])->([i, k], [i, k]) {i=4, j=64, k=3} need_replication={j, k}, custom>
// CHECK: stablehlo.custom_call @ApproxTopK
// CHECK-SAME: name = "approximate-top-k"
// CHECK-SAME: <([i, j], [i, j], [], [])->([k, j], [k, j]) {i=4, j=64, k=2} need_replication={i, k}, custom>
module @largest {
  func.func private @above(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>) -> tensor<i1> {
    %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
  func.func @main(%x: tensor<4x64xf32>, %i: tensor<4x64xi32>, %s: tensor<f32>, %t: tensor<i32>) -> (tensor<4x3xf32>, tensor<2x64xf32>) {
    %values, %indices = chlo.top_k(%x, k = 3) : tensor<4x64xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
    %1:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %s, %t) {called_computations = [@above], mhlo.backend_config = {aggregate_to_topk = true, is_fallback = true, recall_target = 0.95 : f32, reduction_dim = 0 : i64, reduction_input_size_override = -1 : i64, top_k = 2 : i64}} : (tensor<4x64xf32>, tensor<4x64xi32>, tensor<f32>, tensor<i32>) -> (tensor<2x64xf32>, tensor<2x64xi32>)
    return %values, %1#0 : tensor<4x3xf32>, tensor<2x64xf32>
  }
}

// -----

// Real numbers: half of 5 n log2 n, for 3 transforms of 16 x 64 points.
// CHECK-LABEL: module @fourier
// CHECK: stablehlo.fft
// CHECK-SAME: flops = 76800 : i64, name = "fft"
// CHECK-SAME: <([i, j, k])->([i, l, m]) {i=3, j=16, k=64, l=16, m=33} need_replication={j, k, l, m}, custom>
module @fourier {
  func.func @main(%x: tensor<3x16x64xf32>) -> tensor<3x16x33xcomplex<f32>> {
    %0 = stablehlo.fft %x, type = RFFT, length = [16, 64] : (tensor<3x16x64xf32>) -> tensor<3x16x33xcomplex<f32>>
    return %0 : tensor<3x16x33xcomplex<f32>>
  }
}
