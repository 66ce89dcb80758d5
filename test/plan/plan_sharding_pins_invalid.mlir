// Shardings that cannot be kept are refused, never dropped.
// RUN: rhino-opt %s --rhino-plan-sharding=topology=dgx-h100:1 --split-input-file --verify-diagnostics

// Two arguments that are added need one layout.
module @contradiction {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+2 {{argument arg0 and argument arg1 have different shardings but are combined element by element}}
  // expected-note @+1 {{give both the same sharding}}
  func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x8xf32> {
    %0 = stablehlo.add %a, %b : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

// Half an axis is no axis of the mesh.
module @sub_axis {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+2 {{argument arg0 is sharded over axis 'x:(1)2' but the mesh has x}}
  // expected-note @+1 {{use the axes of the mesh}}
  func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}) -> tensor<8x8xf32> {
    %0 = stablehlo.tanh %a : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

// A dimension of size 1 has no parts.
module @single {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+2 {{argument arg0: dim 0 of size 1 cannot be sharded over 'x'}}
  // expected-note @+1 {{shard another dimension}}
  func.func @main(%a: tensor<1x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<1x8xf32> {
    %0 = stablehlo.tanh %a : tensor<1x8xf32>
    return %0 : tensor<1x8xf32>
  }
}

// -----

// 12 rows on 8 devices: uneven parts are not planned.
module @uneven {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+2 {{a given sharding does not divide its dimension}}
  // expected-note @+1 {{drop it or choose another mesh}}
  func.func @main(%a: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<12x8xf32> {
    %0 = stablehlo.tanh %a : tensor<12x8xf32>
    return %0 : tensor<12x8xf32>
  }
}

// -----

// A result in the buffer of an argument lies as that does, also where its update could be laid out apart.
module @result_in_a_buffer {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+2 {{argument arg0 and result 0 have different shardings but are combined element by element}}
  // expected-note @+1 {{give both the same sharding}}
  func.func @main(%w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, rhino.role = "param", tf.aliasing_output = 0 : i32},
                  %m: tensor<64x64xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32},
                  %x: tensor<64x64xf32> {rhino.role = "batch"})
      -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<64x64xf32>) {
    %g = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %nm = stablehlo.add %m, %g : tensor<64x64xf32>
    %nw = stablehlo.subtract %w, %nm : tensor<64x64xf32>
    return %nw, %nm : tensor<64x64xf32>, tensor<64x64xf32>
  }
}
