// What the pass refuses about the module itself: a located error, and a note with the remedy.
// RUN: rhino-opt %s --rhino-plan-sharding=topology=dgx-h100:1 --split-input-file --verify-diagnostics

// The entry function must be called @main.
// expected-error @+2 {{'rhino-plan-sharding' needs a function @main}}
// expected-note @+1 {{name the step function @main, as jax does}}
module @no_main {
  func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A call hides what is computed; rhino-auto inlines first.
module @call {
  func.func private @layer(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+2 {{call to @layer is not inlined}}
    // expected-note @+1 {{run the `rhino-inline` pass first (rhino-auto does)}}
    %0 = func.call @layer(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// Dynamic shapes are refused where the type first appears.
module @dynamic {
  func.func @main(%n: tensor<1xi32>) {
    // expected-error @+2 {{type 'tensor<?xf32>' has a dynamic dimension}}
    // expected-note @+1 {{lower the step with static shapes; XLA's partitioner needs them}}
    %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
    return
  }
}

// -----

// One mesh is planned, and it is called @mesh.
// expected-error @+2 {{module has meshes @mesh, @other, but one @mesh is planned}}
// expected-note @+1 {{drop them or keep @mesh}}
module @two_meshes {
  sdy.mesh @mesh = <["x"=8]>
  sdy.mesh @other = <["x"=2, "y"=4]>
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A mesh in the module must be of the cluster's size.
module @too_few {
  sdy.mesh @mesh = <["x"=4]>
  // expected-error @+2 {{mesh 4 has 4 devices but cluster dgx-h100:1 has 8}}
  // expected-note @+1 {{give sizes whose product is the number of devices}}
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// Programs are trees of blocks, as jax makes them.
module @branch {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+2 {{@main branches between blocks}}
    // expected-note @+1 {{write the branches as stablehlo.case or stablehlo.while}}
    cf.br ^end(%x : tensor<8xf32>)
  ^end(%y: tensor<8xf32>):
    return %y : tensor<8xf32>
  }
}
