// What rhino-replicate-fragments refuses, and where.
// RUN: rhino-opt %s --rhino-replicate-fragments=count=2 --verify-diagnostics --split-input-file
// RUN: not rhino-opt %s --rhino-replicate-fragments=count=0 --split-input-file 2>&1 | filecheck %s --check-prefix=COUNT
// COUNT: count 0 is not a number of replicas

// expected-error @+2 {{there is no loop over micro-batches}}
// expected-note @+1 {{run rhino-form-fragments first}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

!s = !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
!c = !mpmd.mesh_tensor<"stage0", tensor<ui32>>
module attributes {rhino.placement = {stage0 = [0]}} {
  func.func private @microbatch(%a: !s, %x: !s) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    %0 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%a, %x) (%b: tensor<4xf32>, %y: tensor<4xf32>) {
      %1 = stablehlo.add %b, %y : tensor<4xf32>
      mpmd.return %1 : tensor<4xf32>
    } : (!s, !s) -> !s
    return %0 : !s
  }
  func.func @main(%a: !s, %x: !s) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    // expected-error @+2 {{3 micro-batches cannot be shared out to 2 replicas}}
    // expected-note @+1 {{give a count that divides 3}}
    %0 = mpmd.for (%a) {iterations = 3 : ui32} (%b: !s, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%b, %x) : (!s, !s) -> !s
      mpmd.return %n : !s
    } : !s
    return %0 : !s
  }
}

// -----

// A product of all micro-batches is not what any accumulator is.
!s = !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
module attributes {rhino.placement = {stage0 = [0]}} {
  func.func private @microbatch(%a: !s, %x: !s) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    %0 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%a, %x) (%b: tensor<4xf32>, %y: tensor<4xf32>) {
      // expected-error @+1 {{an accumulator ends in 'stablehlo.divide', which does not say how replicas come together}}
      %1 = stablehlo.divide %b, %y : tensor<4xf32>
      mpmd.return %1 : tensor<4xf32>
    } : (!s, !s) -> !s
    return %0 : !s
  }
  func.func @main(%a: !s, %x: !s) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    %0 = mpmd.for (%a) {iterations = 2 : ui32} (%b: !s, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%b, %x) : (!s, !s) -> !s
      mpmd.return %n : !s
    } : !s
    return %0 : !s
  }
}

// -----

// Rows over something else than zeros would be added to it once per replica.
!s = !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
!c = !mpmd.mesh_tensor<"stage0", tensor<ui32>>
module attributes {rhino.placement = {stage0 = [0]}} {
  func.func private @microbatch(%a: !s, %i: !c) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    %0 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%a, %i) (%b: tensor<4xf32>, %j: tensor<ui32>) {
      %one = stablehlo.constant dense<1.0> : tensor<1xf32>
      %1 = stablehlo.dynamic_update_slice %b, %one, %j : (tensor<4xf32>, tensor<1xf32>, tensor<ui32>) -> tensor<4xf32>
      mpmd.return %1 : tensor<4xf32>
    } : (!s, !c) -> !s
    return %0 : !s
  }
  func.func @main(%a: !s) -> !s attributes {topology = #mpmd.topology<<"stage0": <[]>>>} {
    // expected-error @+2 {{value 0 of the loop is written row by row, but does not start as zeros}}
    // expected-note @+1 {{replicas write rows of their own, which are added up}}
    %0 = mpmd.for (%a) {iterations = 2 : ui32} (%b: !s, %i: tensor<ui32>) {
      %j = mpmd.assign %i : (tensor<ui32>) -> !c
      %n = mpmd.call @microbatch(%b, %j) : (!s, !c) -> !s
      mpmd.return %n : !s
    } : !s
    return %0 : !s
  }
}

// -----

// expected-error @+1 {{the mesh has an axis "replica" already}}
module attributes {rhino.placement = {stage0 = [0, 1]}} {
  // expected-note @-1 {{replicate fragments once}}
  sdy.mesh @mesh = <["replica"=2]>
  func.func private @microbatch(%a: !mpmd.mesh_tensor<"stage0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"stage0", tensor<4xf32>> attributes {topology = #mpmd.topology<<"stage0": <["replica"=2]>>>} {
    %0 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%a) (%b: tensor<4xf32>) {
      mpmd.return %b : tensor<4xf32>
    } : (!mpmd.mesh_tensor<"stage0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
    return %0 : !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
  }
  func.func @main(%a: !mpmd.mesh_tensor<"stage0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"stage0", tensor<4xf32>> attributes {topology = #mpmd.topology<<"stage0": <["replica"=2]>>>} {
    %0 = mpmd.for (%a) {iterations = 2 : ui32} (%b: !mpmd.mesh_tensor<"stage0", tensor<4xf32>>, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%b) : (!mpmd.mesh_tensor<"stage0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
      mpmd.return %n : !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
    } : !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
    return %0 : !mpmd.mesh_tensor<"stage0", tensor<4xf32>>
  }
}
