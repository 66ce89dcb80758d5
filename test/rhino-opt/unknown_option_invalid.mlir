// An unknown option names the pass, the option, and the options there are.
// RUN: not rhino-opt %s --rhino-classify-args=explian=true 2>&1 | filecheck %s --check-prefix=PYTHON
// RUN: not rhino-opt %s --rhino-verify=strict=true 2>&1 | filecheck %s --check-prefix=NONE

// PYTHON: <pass-pipeline>:1:1: error: 'rhino-classify-args' has no option 'explian'
// PYTHON: note: its options are explain
// NONE: error: 'rhino-verify' has no option 'strict'
// NONE: note: it has none
func.func @main() {
  return
}
