// RUN: not rhino-opt %s --rhino-split-microbatch=count=0 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not rhino-opt %s --rhino-split-microbatch=count=2 --rhino-split-microbatch=count=2 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not rhino-opt %s --rhino-split-microbatch='count=2 sums=0' 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not rhino-opt %s --rhino-split-microbatch='count=2 sums=2' 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not rhino-opt %s --rhino-split-microbatch='count=1 sums=2' 2>&1 | filecheck %s --check-prefix=ONE

// ZERO: count 0 is not a number of micro-batches
// TWICE: error: the step is split into micro-batches already
// NONE: sums 0 is not a number of local sums
// ONE: one micro-batch adds nothing up, and has no local sums
// NOTHING: error: nothing that 2 micro-batches add up can be 2 local sums
// NOTHING: give a number that divides the examples of a micro-batch, or 1
func.func @main(%x: tensor<8xf32> {rhino.role = "batch"}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
