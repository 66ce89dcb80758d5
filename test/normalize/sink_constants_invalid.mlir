// It has no options, and wants a program.
// RUN: not rhino-opt %s --rhino-sink-constants=all 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not rhino-opt %s --rhino-sink-constants 2>&1 | filecheck %s

// OPTION: 'all'

// CHECK: error: 'rhino-sink-constants' needs a function @main
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
