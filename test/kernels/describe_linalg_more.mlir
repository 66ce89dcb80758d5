// The rest of linear algebra, with calls as jax makes them: the batch (i) may be split, the matrices stay whole.
// RUN: rhino-opt %s --rhino-describe-kernels --split-input-file | filecheck %s

// m = 8, n = 6: m n^2 - n^3 / 3 = 216 operations for each of 4 matrices; a permutation needs no arithmetic.
// CHECK-LABEL: module @lu
// CHECK: stablehlo.custom_call @cusolver_getrf_ffi
// CHECK-SAME: flops = 864 : i64, name = "lu", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i]) {i=4, j=8, k=6, l=8, m=6, n=6} need_replication={j, k, l, m, n}, custom>
// CHECK: stablehlo.custom_call @cu_lu_pivots_to_permutation
// CHECK-SAME: flops = 0 : i64, name = "lu-pivots", rate = "vector", type = "i32"
// CHECK-SAME: <([i, j])->([i, k]) {i=4, j=6, k=8} need_replication={j, k}, custom>
module @lu {
  func.func @main(%a: tensor<4x8x6xf32>) -> (tensor<4x8x6xf32>, tensor<4x8xi32>) {
    %0:3 = stablehlo.custom_call @cusolver_getrf_ffi(%a) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>) -> (tensor<4x8x6xf32>, tensor<4x6xi32>, tensor<4xi32>)
    %1 = stablehlo.custom_call @cu_lu_pivots_to_permutation(%0#1) {mhlo.backend_config = {}} : (tensor<4x6xi32>) -> tensor<4x8xi32>
    return %0#0, %1 : tensor<4x8x6xf32>, tensor<4x8xi32>
  }
}

// -----

// 2 m n^2 - 2 n^3 / 3 = 432 for each; with its first k = 5 reflectors 4 m n k - 2 (m + n) k^2 + 4 k^3 / 3 = 426.
// CHECK-LABEL: module @qr
// CHECK: stablehlo.custom_call @lapack_sgeqp3_ffi
// CHECK-SAME: flops = 1728 : i64, name = "qr-pivoted", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k], [i, l])->([i, m, n], [i, o], [i, p]) {i=4, j=8, k=6, l=6, m=8, n=6, o=6, p=6} need_replication={j, k, l, m, n, o, p}, custom>
// CHECK: stablehlo.custom_call @cusolver_orgqr_ffi
// CHECK-SAME: flops = 1704 : i64, name = "householder-product", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k], [i, l])->([i, m, n]) {i=4, j=8, k=6, l=5, m=8, n=6} need_replication={j, k, l, m, n}, custom>
module @qr {
  func.func @main(%a: tensor<4x8x6xf32>, %p: tensor<4x6xi32>, %t: tensor<4x5xf32>) -> tensor<4x8x6xf32> {
    %0:3 = stablehlo.custom_call @lapack_sgeqp3_ffi(%a, %p) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>, tensor<4x6xi32>) -> (tensor<4x8x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>)
    %1 = stablehlo.custom_call @cusolver_orgqr_ffi(%0#0, %t) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>, tensor<4x5xf32>) -> tensor<4x8x6xf32>
    return %1 : tensor<4x8x6xf32>
  }
}

// -----

// n = 8: 9 n^3 with vectors, which cuSOLVER is always asked for, 4 n^3 / 3 without them.
// CHECK-LABEL: module @symmetric_eigenvalues
// CHECK: stablehlo.custom_call @cusolver_syevd_ffi
// CHECK-SAME: flops = 18432 : i64, name = "eigh", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i]) {i=4, j=8, k=8, l=8, m=8, n=8} need_replication={j, k, l, m, n}, custom>
// CHECK: stablehlo.custom_call @lapack_ssyevd_ffi
// CHECK-SAME: flops = 2728 : i64, name = "eigh", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i]) {i=4, j=8, k=8, l=8, m=8, n=8} need_replication={j, k, l, m, n}, custom>
module @symmetric_eigenvalues {
  func.func @main(%a: tensor<4x8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %0:3 = stablehlo.custom_call @cusolver_syevd_ffi(%a) {mhlo.backend_config = {algorithm = 0 : ui8, lower = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4xi32>)
    %1:3 = stablehlo.custom_call @lapack_ssyevd_ffi(%a) {mhlo.backend_config = {mode = 78 : ui8, uplo = 76 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4xi32>)
    return %0#1, %1#1 : tensor<4x8xf32>, tensor<4x8xf32>
  }
}

// -----

// 25 n^3 with vectors, 10 n^3 without; four times that for complex numbers. Each has its own results.
// CHECK-LABEL: module @eigenvalues
// CHECK: stablehlo.custom_call @lapack_sgeev_ffi
// CHECK-SAME: flops = 51200 : i64, name = "eig", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l], [i, m], [i, n, o], [i, p, q], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8, q=8} need_replication={j, k, l, m, n, o, p, q}, custom>
// CHECK: stablehlo.custom_call @cusolver_geev_ffi
// CHECK-SAME: flops = 51200 : i64, name = "eig", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i, o, p], [i, q, r], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8, q=8, r=8} need_replication={j, k, l, m, n, o, p, q, r}, custom>
// CHECK: stablehlo.custom_call @cuhybrid_eig_comp
// CHECK-SAME: flops = 81920 : i64, name = "eig", rate = "vector", type = "complex<f32>"
// CHECK-SAME: <([i, j, k])->([i, l], [i, m, n], [i, o, p], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8} need_replication={j, k, l, m, n, o, p}, custom>
module @eigenvalues {
  func.func @main(%a: tensor<4x8x8xf32>, %c: tensor<4x8x8xcomplex<f32>>) -> (tensor<4x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8xcomplex<f32>>) {
    %0:5 = stablehlo.custom_call @lapack_sgeev_ffi(%a) {mhlo.backend_config = {compute_left = 86 : ui8, compute_right = 86 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4xi32>)
    %1:5 = stablehlo.custom_call @cusolver_geev_ffi(%a) {mhlo.backend_config = {left = false, right = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4xi32>)
    %2:4 = stablehlo.custom_call @cuhybrid_eig_comp(%c) {mhlo.backend_config = {left = false, magma = "auto", right = false}} : (tensor<4x8x8xcomplex<f32>>) -> (tensor<4x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4xi32>)
    return %0#0, %1#1, %2#0 : tensor<4x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8xcomplex<f32>>
  }
}

// -----

// Schur's form with its vectors: 25 n^3; Hessenberg's: 10 n^3 / 3; a symmetric matrix with three diagonals: 4 n^3 / 3.
// CHECK-LABEL: module @reduced
// CHECK: stablehlo.custom_call @lapack_sgees_ffi
// CHECK-SAME: flops = 51200 : i64, name = "schur", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n, o], [i, p], [i, q], [i], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8, q=8} need_replication={j, k, l, m, n, o, p, q}, custom>
// CHECK: stablehlo.custom_call @lapack_sgees_ffi
// CHECK-SAME: flops = 20480 : i64, name = "schur", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n, o], [i, p], [i, q], [i], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8, q=8} need_replication={j, k, l, m, n, o, p, q}, custom>
// CHECK: stablehlo.custom_call @lapack_sgehrd_ffi
// CHECK-SAME: flops = 6824 : i64, name = "hessenberg", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i]) {i=4, j=8, k=8, l=8, m=8, n=7} need_replication={j, k, l, m, n}, custom>
// CHECK: stablehlo.custom_call @cusolver_sytrd_ffi
// CHECK-SAME: flops = 2728 : i64, name = "tridiagonal", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k])->([i, l, m], [i, n], [i, o], [i, p], [i]) {i=4, j=8, k=8, l=8, m=8, n=8, o=7, p=7} need_replication={j, k, l, m, n, o, p}, custom>
module @reduced {
  func.func @main(%a: tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>) {
    %0:6 = stablehlo.custom_call @lapack_sgees_ffi(%a) {mhlo.backend_config = {mode = 86 : ui8, sort = 78 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi32>, tensor<4xi32>)
    %1:6 = stablehlo.custom_call @lapack_sgees_ffi(%a) {mhlo.backend_config = {mode = 78 : ui8, sort = 78 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi32>, tensor<4xi32>)
    %2:3 = stablehlo.custom_call @lapack_sgehrd_ffi(%a) {mhlo.backend_config = {high = 8 : i32, low = 1 : i32}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4xi32>)
    %3:5 = stablehlo.custom_call @cusolver_sytrd_ffi(%a) {mhlo.backend_config = {lower = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>, tensor<4xi32>)
    return %0#0, %1#0, %2#1, %3#3 : tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>
  }
}

// -----

// One triangle of a product with n (n + 1) / 2 sums over k = 6; rotations of n (n + 1) / 2 pairs, six operations each, of
// a matrix that jax never makes a batch of.
// CHECK-LABEL: module @updates
// CHECK: stablehlo.custom_call @cusolver_syrk_ffi
// CHECK-SAME: flops = 1728 : i64, name = "symmetric-product", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j, k], [i, l, m], [], [])->([i, n, o]) {i=4, j=8, k=6, l=8, m=8, n=8, o=8} need_replication={j, k, l, m, n, o}, custom>
// CHECK: stablehlo.custom_call @cu_cholesky_update_ffi
// CHECK-SAME: flops = 216 : i64, name = "cholesky-update", rate = "vector", replicated = "the algorithm works along the whole matrix", type = "f32"
// CHECK-SAME: <([i, j], [k])->([l, m], [n]) {i=8, j=8, k=8, l=8, m=8, n=8} need_replication={i, j, k, l, m, n}, custom>
module @updates {
  func.func @main(%a: tensor<4x8x6xf32>, %c: tensor<4x8x8xf32>, %r: tensor<8x8xf32>, %w: tensor<8xf32>) -> (tensor<4x8x8xf32>, tensor<8x8xf32>) {
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = stablehlo.custom_call @cusolver_syrk_ffi(%a, %c, %one, %one) {mhlo.backend_config = {transpose = false}} : (tensor<4x8x6xf32>, tensor<4x8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<4x8x8xf32>
    %1:2 = stablehlo.custom_call @cu_cholesky_update_ffi(%r, %w) {mhlo.backend_config = {}} : (tensor<8x8xf32>, tensor<8xf32>) -> (tensor<8x8xf32>, tensor<8xf32>)
    return %0, %1#0 : tensor<4x8x8xf32>, tensor<8x8xf32>
  }
}

// -----

// n = 8, 6 right-hand sides: 4 n + 7 n 6 = 368 for each of 4. Where pivots are changed, the largest of all columns
// decides: there these (n) stay whole.
// CHECK-LABEL: module @tridiagonal_systems
// CHECK: stablehlo.custom_call @lapack_sgtsv_ffi
// CHECK-SAME: flops = 1472 : i64, name = "tridiagonal-solve", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j], [i, k], [i, l], [i, m, n])->([i, o], [i, p], [i, q], [i, r, n], [i]) {i=4, j=8, k=8, l=8, m=8, n=6, o=8, p=8, q=8, r=8} need_replication={j, k, l, m, o, p, q, r}, custom>
// CHECK: stablehlo.custom_call @tridiagonal_solve_perturbed_ffi
// CHECK-SAME: flops = 1472 : i64, name = "tridiagonal-solve", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j], [i, k], [i, l], [i, m, n])->([i, o, p]) {i=4, j=8, k=8, l=8, m=8, n=6, o=8, p=6} need_replication={j, k, l, m, n, o, p}, custom>
// CHECK: stablehlo.custom_call @cu_tridiagonal_solve_perturbed
// CHECK-SAME: flops = 1472 : i64, name = "tridiagonal-solve", rate = "vector", type = "f32"
// CHECK-SAME: <([i, j], [i, k], [i, l], [i, m, n])->([i, o, p]) {i=4, j=8, k=8, l=8, m=8, n=6, o=8, p=6} need_replication={j, k, l, m, n, o, p}, custom>
module @tridiagonal_systems {
  func.func @main(%d: tensor<4x8xf32>, %b: tensor<4x8x6xf32>) -> (tensor<4x8x6xf32>, tensor<4x8x6xf32>, tensor<4x8x6xf32>) {
    %0:5 = stablehlo.custom_call @lapack_sgtsv_ffi(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>)
    %1 = stablehlo.custom_call @tridiagonal_solve_perturbed_ffi(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
    %2 = stablehlo.custom_call @cu_tridiagonal_solve_perturbed(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
    return %0#3, %1, %2 : tensor<4x8x6xf32>, tensor<4x8x6xf32>, tensor<4x8x6xf32>
  }
}
