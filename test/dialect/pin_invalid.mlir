// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+1 {{rhino.pin[0].sharding has 1 dimensions, but the type has 2 (argument 0)}}
func.func @main(%a: tensor<4x8xf32> {rhino.pin = [{sharding = [["x"]], stage = 1 : i64}]}) {
  return
}

// -----

// expected-error @+1 {{rhino.pin[0].slice [[2, 5]] is no part of the shape [4, 8] (argument 0)}}
func.func @main(%a: tensor<4x8xf32> {rhino.pin = [{sharding = [[], []], slice = [[2 : i64, 5 : i64]], stage = 1 : i64}]}) {
  return
}

// -----

// expected-error @+1 {{rhino.pin[1] is of all of it, and there are 2 entries (argument 0)}}
func.func @main(%a: tensor<4x8xf32> {rhino.pin = [{sharding = [[], []], slice = [[0 : i64, 2 : i64]], stage = 1 : i64},
                                                  {sharding = [[], []], stage = 0 : i64}]}) {
  return
}
