// Options that cannot be meant are named, with what to write instead.
// RUN: not rhino-opt %s --rhino-plan-sharding 2>&1 | filecheck %s --check-prefix=TOPOLOGY
// RUN: not rhino-opt %s --rhino-plan-sharding=topology=dgx-x9 2>&1 | filecheck %s --check-prefix=PRESET
// RUN: not rhino-opt %s --rhino-plan-sharding=topology=dgx-h100:0 2>&1 | filecheck %s --check-prefix=HOSTS
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=3x3" 2>&1 | filecheck %s --check-prefix=DEVICES
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=2by4" 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=-2x-4" 2>&1 | filecheck %s --check-prefix=NEGATIVE
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 mesh=2x2x2x1" 2>&1 | filecheck %s --check-prefix=AXES
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 memory-limit=-1" 2>&1 | filecheck %s --check-prefix=LIMIT

// TOPOLOGY: error: 'rhino-plan-sharding' needs a topology
// TOPOLOGY: note: give topology=dgx-h100:1 or another cluster
// PRESET: error: 'rhino-plan-sharding': cluster 'dgx-x9': no such preset or file
// PRESET: note: known: {{.*}}dgx-h100{{.*}} or the path of a .yaml file
// HOSTS: error: 'rhino-plan-sharding': cluster 'dgx-h100:0': hosts '0' is not a positive integer
// No mesh of 9 devices suits 8: the error is at @main, whose plan it would be.
// DEVICES: plan_sharding_options_invalid.mlir:[[LINE:[0-9]+]]:1: error: mesh 3x3 has 9 devices but cluster dgx-h100:1 has 8
// DEVICES: func.func @main
// DEVICES: :[[LINE]]:1: note: give sizes whose product is the number of devices
// TEXT: error: 'rhino-plan-sharding': mesh '2by4' is not sizes joined by x
// TEXT: note: write 8, 2x4 or 4x2x2
// The product of the sizes is right, and still it is no mesh.
// NEGATIVE: error: mesh -2x-4 has an axis of -4 devices
// AXES: error: mesh 2x2x2x1 has 4 axes
// AXES: note: give 1 to 3
// LIMIT: error: 'rhino-plan-sharding': memory-limit -1 is negative
// LIMIT: note: give bytes per device, or 0
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
