// Linear algebra, the largest elements and Fourier transforms on each device's part.
// RUN: rhino-opt %s --rhino-describe-kernels --rhino-partition-kernels --split-input-file | filecheck %s

// One matrix for all devices, the columns of the right-hand sides split.
// CHECK-LABEL: module @triangular
// CHECK: sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
// CHECK-SAME: (%[[A:.*]]: tensor<8x8xf32>, %[[B:.*]]: tensor<8x2xf32>)
// CHECK-NEXT: stablehlo.custom_call @lapack_strsm_ffi(%[[A]], %[[B]])
// CHECK-SAME: flops = 128 : i64
// CHECK-SAME: -> tensor<8x2xf32>
module @triangular {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {mhlo.backend_config = {side = 76 : ui8}} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}

// -----

// Columns of a matrix that are split must be made whole: only the batch stays split.
// CHECK-LABEL: module @whole_matrix
// CHECK: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}, {}]>]
// CHECK: stablehlo.custom_call @cusolver_geqrf_ffi
// CHECK-SAME: (tensor<2x8x6xf32>) -> (tensor<2x8x6xf32>, tensor<2x6xf32>)
module @whole_matrix {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> tensor<4x8x6xf32> {
    %0:2 = stablehlo.custom_call @cusolver_geqrf_ffi(%a) {mhlo.backend_config = {}} : (tensor<4x8x6xf32>) -> (tensor<4x8x6xf32>, tensor<4x6xf32>)
    return %0#0 : tensor<4x8x6xf32>
  }
}

// -----

// XLA's partitioner would gather what a Fourier transform reads, batch and all.
// CHECK-LABEL: module @fourier
// CHECK: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
// CHECK: stablehlo.fft %{{.*}}, type = FFT, length = [64]
// CHECK-SAME: (tensor<2x64xcomplex<f32>>) -> tensor<2x64xcomplex<f32>>
module @fourier {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x64xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x64xcomplex<f32>> {
    %0 = stablehlo.fft %x, type = FFT, length = [64] : (tensor<4x64xcomplex<f32>>) -> tensor<4x64xcomplex<f32>>
    return %0 : tensor<4x64xcomplex<f32>>
  }
}

// -----

// The positions that an approximate choice is given are counted on the device: XLA looks for that iota.
// CHECK-LABEL: module @approximate
// CHECK: sdy.manual_computation(
// CHECK-SAME: (%[[X:.*]]: tensor<2x64xf32>, %{{.*}}: tensor<2x64xi32>, %[[S:.*]]: tensor<f32>, %[[T:.*]]: tensor<i32>)
// CHECK: %[[I:.*]] = stablehlo.iota dim = 1 : tensor<2x64xi32>
// CHECK: stablehlo.custom_call @ApproxTopK(%[[X]], %[[I]], %[[S]], %[[T]])
module @approximate {
  sdy.mesh @mesh = <["x"=2]>
  func.func private @above(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>) -> tensor<i1> {
    %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
  func.func @main(%x: tensor<4x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %s: tensor<f32>, %t: tensor<i32>) -> tensor<4x2xf32> {
    %i = stablehlo.iota dim = 1 : tensor<4x64xi32>
    %0:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %s, %t) {called_computations = [@above], mhlo.backend_config = {aggregate_to_topk = true, is_fallback = true, recall_target = 0.95 : f32, reduction_dim = 1 : i64, reduction_input_size_override = -1 : i64, top_k = 2 : i64}} : (tensor<4x64xf32>, tensor<4x64xi32>, tensor<f32>, tensor<i32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    return %0#0 : tensor<4x2xf32>
  }
}
