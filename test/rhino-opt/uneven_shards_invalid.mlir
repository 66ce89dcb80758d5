// sdy-convert-global-to-local fails a C++ check on uneven shards: refused at the value.
// RUN: rhino-opt %s --sdy-convert-global-to-local --verify-diagnostics --split-input-file

sdy.mesh @mesh = <["x"=2, "y"=2]>
// expected-error @+2 {{dim 0 with size 15 is not divisible by 2}}
// expected-note @+1 {{run sdy-pad-for-divisibility first, or shard another dimension}}
func.func @main(%x: tensor<15xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  return
}

// -----

// Two axes on one dimension need the product of their sizes to divide it; so do sub-axes.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x6xf32>) {
  // expected-error @+2 {{dim 1 with size 6 is not divisible by 4}}
  // expected-note @+1 {{}}
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x", "y":(1)2}]>]>} : tensor<8x6xf32>
  return
}
