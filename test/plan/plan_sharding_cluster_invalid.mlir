// A cluster file that lacks a field or has an impossible one is refused at the line of the file, with the field's path.
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=%S/Inputs/missing_field.yaml" 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=%S/Inputs/negative_field.yaml" 2>&1 | filecheck %s --check-prefix=NEGATIVE
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=%S/Inputs/no_such.yaml" 2>&1 | filecheck %s --check-prefix=NONE

// MISSING: error: 'rhino-plan-sharding': {{.*}}missing_field.yaml
// MISSING-SAME: device has no key 'memory_bytes'
// NEGATIVE: error: 'rhino-plan-sharding': {{.*}}negative_field.yaml
// NEGATIVE-SAME: levels
// NEGATIVE-SAME: bandwidth_bytes_s
// NONE: error: 'rhino-plan-sharding': {{.*}}no_such.yaml: cannot read: No such file or directory
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
