sdy.mesh @manual = <["dp"=2]>
func.func @main(%w: tensor<4x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@manual, [{"dp"}, {}]>] out_shardings=[<@manual, [{}]>] manual_axes={"dp"} (%a: tensor<4x4xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = "stablehlo.all_reduce"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%b: tensor<f32>, %c: tensor<f32>):
      %5 = stablehlo.add %b, %c : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %4 : tensor<4xf32>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
