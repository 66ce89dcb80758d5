// Every C++ pass that jaxlib registers is also a flag, whether or not --help lists it; options and nesting are as usual.
// RUN: rhino-opt %s --remove-dead-values --vhlo-to-version=target=1.0.0 --xla-sdy-round-trip-import-shardy-attrs \
// RUN:   --dump-pass-pipeline -o /dev/null 2>&1 | filecheck %s
// RUN: not rhino-opt %s --vhlo-to-version=goal=1.0.0 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not rhino-opt %s --xla-sdy-round-trip 2>&1 | filecheck %s --check-prefix=UNKNOWN

// CHECK: builtin.module(remove-dead-values,vhlo-to-version{target=1.0.0},xla-sdy-round-trip-import-shardy-attrs)
// OPTION: error: 'vhlo-to-version' has no option 'goal'
// UNKNOWN: rhino-opt: error: unknown flag or pass '--xla-sdy-round-trip' (rhino-opt --help lists both)
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
