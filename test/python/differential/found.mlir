// Programs that the differential test found and cut down, side by side: each was wrong, or did not compile, when found.
func.func @main(
    %batch_groups: tensor<4x12x2xf32>, %batch_groups_kernel: tensor<2x3x2xf32>,
    %strided: tensor<8x8x2xf32>, %strided_kernel: tensor<8x3x6xf32>,
    %start: tensor<i32>, %rows: tensor<12x3xi32>,
    %lowest: tensor<f32>, %square: tensor<8x8xf32>,
    %image: tensor<8x4x8xf32>, %grouped_kernel: tensor<1x2x8xf32>, %depthwise_kernel: tensor<1x1x8xf32>,
    %padded: tensor<1x6x4x1xf32>, %wide_kernel: tensor<4x1x5x1xf32>, %element: tensor<1xi64>, %scores: tensor<8x16xbf16>,
    %odd: tensor<7x2x3xbf16>)
    -> (tensor<10x2x2xf32>, tensor<4x1x6xf32>, tensor<3xi32>, tensor<8xf32>, tensor<8x4x8xf32>, tensor<8x4x8xf32>,
        tensor<1x4x1x4xf32>, tensor<8xi64>, tensor<bf16>, tensor<16xbf16>, tensor<0xi32>, tensor<7x2x3xbf16>) {
  // Sums over features were those of idle axes, too.
  %0 = "stablehlo.convolution"(%batch_groups, %batch_groups_kernel) {window_strides = array<i64: 1>,
      padding = dense<[[2, 0]]> : tensor<1x2xi64>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 2>,
      window_reversal = array<i1: true>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[o, 0, i]->[0, f, b]>,
      feature_group_count = 1 : i64, batch_group_count = 2 : i64}
      : (tensor<4x12x2xf32>, tensor<2x3x2xf32>) -> tensor<10x2x2xf32>
  %1 = "stablehlo.convolution"(%strided, %strided_kernel) {window_strides = array<i64: 3>,
      padding = dense<[[3, 2]]> : tensor<1x2xi64>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>,
      window_reversal = array<i1: false>, dimension_numbers = #stablehlo.conv<[0, f, b]x[i, 0, o]->[0, b, f]>,
      feature_group_count = 1 : i64, batch_group_count = 2 : i64}
      : (tensor<8x8x2xf32>, tensor<8x3x6xf32>) -> tensor<4x1x6xf32>
  // The start counted on every device.
  %2 = stablehlo.reduce(%rows init: %start) applies stablehlo.add across dimensions = [0]
      : (tensor<12x3xi32>, tensor<i32>) -> tensor<3xi32>
  // The start was dropped.
  %3 = stablehlo.reduce(%square init: %lowest) applies stablehlo.minimum across dimensions = [0]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  // Groups were as many on each device; that read and wrote memory of others.
  %4 = "stablehlo.convolution"(%image, %grouped_kernel) {window_strides = array<i64: 1>,
      padding = dense<[[0, 0]]> : tensor<1x2xi64>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>,
      window_reversal = array<i1: false>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
      feature_group_count = 4 : i64, batch_group_count = 1 : i64}
      : (tensor<8x4x8xf32>, tensor<1x2x8xf32>) -> tensor<8x4x8xf32>
  %5 = "stablehlo.convolution"(%image, %depthwise_kernel) {window_strides = array<i64: 1>,
      padding = dense<[[0, 0]]> : tensor<1x2xi64>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>,
      window_reversal = array<i1: false>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
      feature_group_count = 8 : i64, batch_group_count = 1 : i64}
      : (tensor<8x4x8xf32>, tensor<1x1x8xf32>) -> tensor<8x4x8xf32>
  // Parts of the image and of a window that is larger did not belong together.
  %6 = "stablehlo.convolution"(%padded, %wide_kernel) {window_strides = array<i64: 3, 3>,
      padding = dense<[[2, 3], [1, 1]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 1, 1>,
      rhs_dilation = array<i64: 2, 1>, window_reversal = array<i1: false, false>,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[o, 0, 1, i]->[b, 0, 1, f]>,
      feature_group_count = 1 : i64, batch_group_count = 1 : i64}
      : (tensor<1x6x4x1xf32>, tensor<4x1x5x1xf32>) -> tensor<1x4x1x4xf32>
  // A device that has not the element to be set took another from the constant.
  %table = stablehlo.constant dense<[9, 7, 3, 10, 6, 2, 1, 5]> : tensor<8xi64>
  %at = stablehlo.constant dense<0> : tensor<1x1xi32>
  %7 = "stablehlo.scatter"(%table, %at, %element) ({
    ^bb0(%old: tensor<i64>, %new: tensor<i64>):
      stablehlo.return %new : tensor<i64>
  }) {scatter_dimension_numbers = #stablehlo.scatter<
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
      : (tensor<8xi64>, tensor<1x1xi32>, tensor<1xi64>) -> tensor<8xi64>
  // Of an index that nobody reads XLA keeps the maximum alone, which it could not reduce over devices.
  %low = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %first = stablehlo.constant dense<0> : tensor<i32>
  %counted = stablehlo.iota dim = 0 : tensor<8x16xi32>
  %8:2 = "stablehlo.reduce"(%scores, %counted, %low, %first) ({
    ^bb0(%a: tensor<bf16>, %m: tensor<i32>, %c: tensor<bf16>, %n: tensor<i32>):
      %more = stablehlo.compare GT, %a, %c : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %same = stablehlo.compare EQ, %a, %c : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %less = stablehlo.compare LT, %m, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %earlier = stablehlo.and %same, %less : tensor<i1>
      %wins = stablehlo.or %more, %earlier : tensor<i1>
      %best = stablehlo.select %more, %a, %c : tensor<i1>, tensor<bf16>
      %index = stablehlo.select %wins, %m, %n : tensor<i1>, tensor<i32>
      stablehlo.return %best, %index : tensor<bf16>, tensor<i32>
  }) {dimensions = array<i64: 0, 1>}
      : (tensor<8x16xbf16>, tensor<8x16xi32>, tensor<bf16>, tensor<i32>) -> (tensor<bf16>, tensor<i32>)
  // As nobody reads an index of which no element is left.
  %9:2 = "stablehlo.reduce"(%scores, %counted, %low, %first) ({
    ^bb0(%a: tensor<bf16>, %m: tensor<i32>, %c: tensor<bf16>, %n: tensor<i32>):
      %more = stablehlo.compare GT, %a, %c : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %best = stablehlo.select %more, %a, %c : tensor<i1>, tensor<bf16>
      %index = stablehlo.select %more, %m, %n : tensor<i1>, tensor<i32>
      stablehlo.return %best, %index : tensor<bf16>, tensor<i32>
  }) {dimensions = array<i64: 0>}
      : (tensor<8x16xbf16>, tensor<8x16xi32>, tensor<bf16>, tensor<i32>) -> (tensor<16xbf16>, tensor<16xi32>)
  %10 = stablehlo.slice %9#1 [3:3] : (tensor<16xi32>) -> tensor<0xi32>
  // As much is cut at the ends as is put between: the process ended.
  %hole = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %11 = stablehlo.pad %odd, %hole, low = [0, 0, -1], high = [0, 0, -1], interior = [0, 0, 1]
      : (tensor<7x2x3xbf16>, tensor<bf16>) -> tensor<7x2x3xbf16>
  return %0, %1, %2, %3, %4, %5, %6, %7, %8#0, %9#0, %10, %11 : tensor<10x2x2xf32>, tensor<4x1x6xf32>, tensor<3xi32>, tensor<8xf32>,
      tensor<8x4x8xf32>, tensor<8x4x8xf32>, tensor<1x4x1x4xf32>, tensor<8xi64>, tensor<bf16>, tensor<16xbf16>, tensor<0xi32>,
      tensor<7x2x3xbf16>
}
