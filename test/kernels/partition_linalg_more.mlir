// The rest of linear algebra on each device's part: the batch stays split over x; what is split over y is made whole.
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// CHECK-LABEL: module @lu
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_getrf_ffi
// CHECK-SAME: flops = 432 : i64, name = "lu"
// CHECK-SAME: : (tensor<2x8x6xf32>) -> (tensor<2x8x6xf32>, tensor<2x6xi32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cu_lu_pivots_to_permutation
// CHECK-SAME: flops = 0 : i64, name = "lu-pivots"
// CHECK-SAME: : (tensor<2x6xi32>) -> tensor<2x8xi32>
module @lu {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (tensor<4x8x6xf32>, tensor<4x8xi32>) {
    %0:3 = stablehlo.custom_call @cusolver_getrf_ffi(%a) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>) -> (tensor<4x8x6xf32>, tensor<4x6xi32>, tensor<4xi32>)
    %1 = stablehlo.custom_call @cu_lu_pivots_to_permutation(%0#1) {mhlo.backend_config = {}} : (tensor<4x6xi32>) -> tensor<4x8xi32>
    return %0#0, %1 : tensor<4x8x6xf32>, tensor<4x8xi32>
  }
}

// -----

// CHECK-LABEL: module @qr
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgeqp3_ffi
// CHECK-SAME: flops = 864 : i64, name = "qr-pivoted"
// CHECK-SAME: : (tensor<2x8x6xf32>, tensor<2x6xi32>) -> (tensor<2x8x6xf32>, tensor<2x6xi32>, tensor<2x6xf32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_orgqr_ffi
// CHECK-SAME: flops = 852 : i64, name = "householder-product"
// CHECK-SAME: : (tensor<2x8x6xf32>, tensor<2x5xf32>) -> tensor<2x8x6xf32>
module @qr {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %p: tensor<4x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %t: tensor<4x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x8x6xf32> {
    %0:3 = stablehlo.custom_call @lapack_sgeqp3_ffi(%a, %p) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>, tensor<4x6xi32>) -> (tensor<4x8x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>)
    %1 = stablehlo.custom_call @cusolver_orgqr_ffi(%0#0, %t) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>, tensor<4x5xf32>) -> tensor<4x8x6xf32>
    return %1 : tensor<4x8x6xf32>
  }
}

// -----

// CHECK-LABEL: module @symmetric_eigenvalues
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_syevd_ffi
// CHECK-SAME: flops = 9216 : i64, name = "eigh"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_ssyevd_ffi
// CHECK-SAME: flops = 1364 : i64, name = "eigh"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2xi32>)
module @symmetric_eigenvalues {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %0:3 = stablehlo.custom_call @cusolver_syevd_ffi(%a) {mhlo.backend_config = {algorithm = 0 : ui8, lower = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4xi32>)
    %1:3 = stablehlo.custom_call @lapack_ssyevd_ffi(%a) {mhlo.backend_config = {mode = 78 : ui8, uplo = 76 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4xi32>)
    return %0#1, %1#1 : tensor<4x8xf32>, tensor<4x8xf32>
  }
}

// -----

// CHECK-LABEL: module @eigenvalues
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgeev_ffi
// CHECK-SAME: flops = 25600 : i64, name = "eig"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x8xcomplex<f32>>, tensor<2x8x8xcomplex<f32>>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_geev_ffi
// CHECK-SAME: flops = 25600 : i64, name = "eig"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xcomplex<f32>>, tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cuhybrid_eig_comp
// CHECK-SAME: flops = 40960 : i64, name = "eig"
// CHECK-SAME: : (tensor<2x8x8xcomplex<f32>>) -> (tensor<2x8xcomplex<f32>>, tensor<2x8x8xcomplex<f32>>, tensor<2x8x8xcomplex<f32>>, tensor<2xi32>)
module @eigenvalues {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %c: tensor<4x8x8xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (tensor<4x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8xcomplex<f32>>) {
    %0:5 = stablehlo.custom_call @lapack_sgeev_ffi(%a) {mhlo.backend_config = {compute_left = 86 : ui8, compute_right = 86 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4xi32>)
    %1:5 = stablehlo.custom_call @cusolver_geev_ffi(%a) {mhlo.backend_config = {left = false, right = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4xi32>)
    %2:4 = stablehlo.custom_call @cuhybrid_eig_comp(%c) {mhlo.backend_config = {left = false, magma = "auto", right = false}} : (tensor<4x8x8xcomplex<f32>>) -> (tensor<4x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4x8x8xcomplex<f32>>, tensor<4xi32>)
    return %0#0, %1#1, %2#0 : tensor<4x8xf32>, tensor<4x8xcomplex<f32>>, tensor<4x8xcomplex<f32>>
  }
}

// -----

// CHECK-LABEL: module @reduced
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgees_ffi
// CHECK-SAME: flops = 25600 : i64, name = "schur"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2xi32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgees_ffi
// CHECK-SAME: flops = 10240 : i64, name = "schur"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2xi32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgehrd_ffi
// CHECK-SAME: flops = 3412 : i64, name = "hessenberg"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x7xf32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_sytrd_ffi
// CHECK-SAME: flops = 1364 : i64, name = "tridiagonal"
// CHECK-SAME: : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2x7xf32>, tensor<2x7xf32>, tensor<2xi32>)
module @reduced {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>) {
    %0:6 = stablehlo.custom_call @lapack_sgees_ffi(%a) {mhlo.backend_config = {mode = 86 : ui8, sort = 78 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi32>, tensor<4xi32>)
    %1:6 = stablehlo.custom_call @lapack_sgees_ffi(%a) {mhlo.backend_config = {mode = 78 : ui8, sort = 78 : ui8}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi32>, tensor<4xi32>)
    %2:3 = stablehlo.custom_call @lapack_sgehrd_ffi(%a) {mhlo.backend_config = {high = 8 : i32, low = 1 : i32}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4xi32>)
    %3:5 = stablehlo.custom_call @cusolver_sytrd_ffi(%a) {mhlo.backend_config = {lower = true}} : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>, tensor<4xi32>)
    return %0#0, %1#0, %2#1, %3#3 : tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x7xf32>, tensor<4x7xf32>
  }
}

// -----

// The kernel of rotations takes a batch of matrices, though jax gives it one.
// CHECK-LABEL: module @updates
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cusolver_syrk_ffi
// CHECK-SAME: flops = 864 : i64, name = "symmetric-product"
// CHECK-SAME: : (tensor<2x8x6xf32>, tensor<2x8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<2x8x8xf32>
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cu_cholesky_update_ffi
// CHECK-SAME: flops = 432 : i64, name = "cholesky-update"
// CHECK-SAME: : (tensor<2x8x8xf32>, tensor<2x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xf32>)
module @updates {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %c: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %r: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>) {
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = stablehlo.custom_call @cusolver_syrk_ffi(%a, %c, %one, %one) {mhlo.backend_config = {transpose = false}} : (tensor<4x8x6xf32>, tensor<4x8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<4x8x8xf32>
    %1:2 = stablehlo.custom_call @cu_cholesky_update_ffi(%r, %w) {mhlo.backend_config = {}} : (tensor<4x8x8xf32>, tensor<4x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>)
    return %0, %1#0 : tensor<4x8x8xf32>, tensor<4x8x8xf32>
  }
}

// -----

// Columns of right-hand sides stay split over y, but where pivots are changed, they are made whole.
// CHECK-LABEL: module @tridiagonal_systems
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @lapack_sgtsv_ffi
// CHECK-SAME: flops = 368 : i64, name = "tridiagonal-solve"
// CHECK-SAME: : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x3xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x3xf32>, tensor<2xi32>)
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @tridiagonal_solve_perturbed_ffi
// CHECK-SAME: flops = 736 : i64, name = "tridiagonal-solve"
// CHECK-SAME: : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x6xf32>) -> tensor<2x8x6xf32>
// CHECK: sdy.manual_computation
// CHECK: stablehlo.custom_call @cu_tridiagonal_solve_perturbed
// CHECK-SAME: flops = 736 : i64, name = "tridiagonal-solve"
// CHECK-SAME: : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x6xf32>) -> tensor<2x8x6xf32>
module @tridiagonal_systems {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%d: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (tensor<4x8x6xf32>, tensor<4x8x6xf32>, tensor<4x8x6xf32>) {
    %0:5 = stablehlo.custom_call @lapack_sgtsv_ffi(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>)
    %1 = stablehlo.custom_call @tridiagonal_solve_perturbed_ffi(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
    %2 = stablehlo.custom_call @cu_tridiagonal_solve_perturbed(%d, %d, %d, %b) {mhlo.backend_config = {}} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
    return %0#3, %1, %2 : tensor<4x8x6xf32>, tensor<4x8x6xf32>, tensor<4x8x6xf32>
  }
}
