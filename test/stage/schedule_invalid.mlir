// What rhino-schedule refuses.
// RUN: rhino-opt %s --rhino-schedule --verify-diagnostics --split-input-file
// RUN: not rhino-opt %S/schedule.mlir --rhino-form-fragments --rhino-schedule=schedule=zero-bubble 2>&1 | filecheck %s --check-prefix=WHOLE
// RUN: not rhino-opt %S/schedule.mlir --rhino-form-fragments --rhino-schedule=weight-delay 2>&1 | filecheck %s --check-prefix=DELAY
// RUN: not rhino-opt %S/schedule.mlir --rhino-form-fragments --rhino-schedule='schedule=gpipe memory-limit=40' 2>&1 | filecheck %s --check-prefix=LIMIT
// RUN: not rhino-opt %S/schedule.mlir --rhino-form-fragments --rhino-schedule='schedule=gpipe k=2' 2>&1 | filecheck %s --check-prefix=K

// WHOLE: error: 'zero-bubble' delays weight gradients, but no backward fragment is split
// WHOLE: note: form fragments with split-backward; if they are, no stage has anything to delay
// DELAY: error: '1f1b' delays weight gradients, but no backward fragment is split
// An accumulator of 16 bytes, and 16 saved for each of four micro-batches.
// LIMIT: error: gpipe needs 80 bytes on group 1, which has 40
// K: error: gpipe does not take k

// expected-error @+2 {{@main is not in fragments}}
// expected-note @+1 {{rhino-form-fragments makes it}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
