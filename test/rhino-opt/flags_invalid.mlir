// Bad flags are errors that say what to write instead.
// RUN: not rhino-opt %s --verify-diagnostic 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not rhino-opt %s --cs 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not rhino-opt %s -o 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not rhino-opt %s --emit-bytecode=maybe 2>&1 | filecheck %s --check-prefix=SWITCH
// RUN: not rhino-opt %s --cse --mlir-print-ir-after=csee 2>&1 | filecheck %s --check-prefix=DUMP
// RUN: not rhino-opt %s %s 2>&1 | filecheck %s --check-prefix=INPUTS

// UNKNOWN: rhino-opt: error: unknown flag or pass '--verify-diagnostic' (did you mean 'verify-diagnostics'?)
// PASS: rhino-opt: error: unknown flag or pass '--cs' (did you mean 'cse'?)
// VALUE: rhino-opt: error: -o needs a value
// SWITCH: rhino-opt: error: --emit-bytecode=maybe: --emit-bytecode takes no value
// DUMP: rhino-opt: error: --mlir-print-ir-after names 'csee', which does not run (the passes that do: cse)
// INPUTS: rhino-opt: error: more than one input
func.func @main() {
  return
}
