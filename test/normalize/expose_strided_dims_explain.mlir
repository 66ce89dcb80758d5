// With explain, every dimension of a parameter that is cut into chunks gets a remark: how it is stored, or why not.
// RUN: rhino-opt %s --split-input-file --rhino-expose-strided-dims=explain=true --verify-diagnostics

func.func @main(
    %w: tensor<8x8xf32> {rhino.name = "params['gates']", rhino.role = "param"},  // expected-remark {{params['gates']: dim 1 with size 8 is stored as 2 x 4}}
    %x: tensor<6x8xf32>) -> tensor<6x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = stablehlo.slice %0 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %2 = stablehlo.slice %0 [0:6, 4:8] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<6x4xf32>
  return %3 : tensor<6x4xf32>
}

// -----

// Queries with more heads than keys and values: no chunk is common to all, unless queries were cut as well.
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param"},  // expected-remark {{arg0: dim 1 with size 8 stays whole: it is cut into pieces of 2 and 4, not into equal chunks}}
    %x: tensor<6x8xf32> {rhino.role = "batch"}) -> (tensor<6x4xf32>, tensor<6x2xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %q = stablehlo.slice %0 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %k = stablehlo.slice %0 [0:6, 4:6] : (tensor<6x8xf32>) -> tensor<6x2xf32>
  %v = stablehlo.slice %0 [0:6, 6:8] : (tensor<6x8xf32>) -> tensor<6x2xf32>
  %1 = stablehlo.multiply %k, %v : tensor<6x2xf32>
  return %q, %1 : tensor<6x4xf32>, tensor<6x2xf32>
}

// -----

// A convolution has one dimension of features, so one cannot be split.
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param"},  // expected-remark {{arg0: dim 1 with size 8 stays whole: stablehlo.convolution reads or makes it whole}}
    %k: tensor<3x8x8xf32> {rhino.role = "param"}, %x: tensor<2x6x8xf32> {rhino.role = "batch"}) -> (tensor<2x6x4xf32>, tensor<2x6x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
  %1 = stablehlo.slice %0 [0:2, 0:6, 0:4] : (tensor<2x6x8xf32>) -> tensor<2x6x4xf32>
  %2 = stablehlo.slice %0 [0:2, 0:6, 4:8] : (tensor<2x6x8xf32>) -> tensor<2x6x4xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<2x6x4xf32>
  %4 = stablehlo.convolution(%0, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x6x8xf32>, tensor<3x8x8xf32>) -> tensor<2x6x8xf32>
  return %3, %4 : tensor<2x6x4xf32>, tensor<2x6x8xf32>
}

// -----

// The user's own sharding of an argument numbers its dimensions: it stays.
sdy.mesh @mesh = <["x"=2]>
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},  // expected-remark {{arg0: dim 1 with size 8 stays whole: a sharding is given for it}}
    %x: tensor<6x8xf32> {rhino.role = "batch"}) -> tensor<6x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = stablehlo.slice %0 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %2 = stablehlo.slice %0 [0:6, 4:8] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<6x4xf32>
  return %3 : tensor<6x4xf32>
}

// -----

// So does a constraint inside the program.
sdy.mesh @mesh = <["x"=2]>
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param"},  // expected-remark {{arg0: dim 1 with size 8 stays whole: a sharding is given by sdy.sharding_constraint}}
    %x: tensor<6x8xf32> {rhino.role = "batch"}) -> tensor<6x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<6x8xf32>
  %2 = stablehlo.slice %1 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %3 = stablehlo.slice %1 [0:6, 4:8] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<6x4xf32>
  return %4 : tensor<6x4xf32>
}

// -----

// Every other element, as some write gates: these pieces are in no chunk.
func.func @main(
    %w: tensor<8x8xf32> {rhino.role = "param"},  // expected-remark {{arg0: dim 1 with size 8 stays whole: a slice takes one of every 2 elements}}
    %x: tensor<6x8xf32> {rhino.role = "batch"}) -> (tensor<6x4xf32>, tensor<6x4xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = stablehlo.slice %0 [0:6, 0:8:2] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %2 = stablehlo.slice %0 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %3 = stablehlo.slice %0 [0:6, 4:8] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<6x4xf32>
  return %1, %4 : tensor<6x4xf32>, tensor<6x4xf32>
}
