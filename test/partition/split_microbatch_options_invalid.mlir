// RUN: not rhino-opt %s --rhino-split-microbatch=count=0 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not rhino-opt %s --rhino-split-microbatch=count=2 --rhino-split-microbatch=count=2 2>&1 | filecheck %s --check-prefix=TWICE

// ZERO: count 0 is not a number of micro-batches
// TWICE: error: the step is split into micro-batches already
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
