// --help has every flag group, every rhino pass with its options, and the C++ passes by library.
// RUN: rhino-opt --help | filecheck %s
// RUN: rhino-opt -h | filecheck %s

// CHECK: USAGE: rhino-opt
// CHECK: Input and output:
// CHECK: --split-input-file[=MARKER]
// CHECK: Rhino passes:
// CHECK: --rhino-classify-args {{ *}}Give each argument of @main its role
// CHECK: explain=<bool> {{ *}}emit a remark
// CHECK: --rhino-plan-sharding
// CHECK: topology=<str>
// CHECK: --rhino-verify
// CHECK: --rhino-auto
// CHECK: MLIR passes:
// CHECK: --cse
// CHECK: Shardy passes:
// CHECK: --sdy-propagation-pipeline
// CHECK: StableHLO passes:
// CHECK: --chlo-legalize-to-stablehlo
