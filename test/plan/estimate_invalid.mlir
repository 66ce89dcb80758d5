// A module without a plan, or with one that contradicts itself or the cluster, has no price.
// RUN: rhino-opt %s --rhino-estimate=topology=dgx-h100:1 --split-input-file --verify-diagnostics
// RUN: not rhino-opt %s --rhino-estimate 2>&1 | filecheck %s --check-prefix=TOPOLOGY

// TOPOLOGY: error: 'rhino-estimate' needs a topology

// expected-error @+2 {{module has no sdy.mesh @mesh}}
// expected-note @+1 {{plan it first: --rhino-plan-sharding}}
module @no_plan {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// expected-error @+2 {{'rhino-estimate' needs a function @main}}
// expected-note @+1 {{name the step function @main, as jax does}}
module @no_main {
  sdy.mesh @mesh = <["x"=8]>
}

// -----

module @other_cluster {
  sdy.mesh @mesh = <["x"=16]>
  // expected-error @+2 {{mesh 16 has 16 devices but cluster dgx-h100:1 has 8}}
  // expected-note @+1 {{estimate for a cluster of the mesh's size}}
  func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
    return %x : tensor<16xf32>
  }
}

// -----

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
