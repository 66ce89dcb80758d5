// Malformed pipeline text is an error at the column where it stops making sense.
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(cse' 2>&1 | filecheck %s --check-prefix=OPEN
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(cse,)' 2>&1 | filecheck %s --check-prefix=COMMA
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(cse inline)' 2>&1 | filecheck %s --check-prefix=SPACE
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(rhino-auto{topology=x)' 2>&1 | filecheck %s --check-prefix=BRACE
// RUN: not rhino-opt %s --pass-pipeline='cse' 2>&1 | filecheck %s --check-prefix=ANCHOR
// RUN: not rhino-opt %s --pass-pipeline='func.func(cse)' 2>&1 | filecheck %s --check-prefix=FUNC
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(func.func(rhino-verify))' 2>&1 | filecheck %s --check-prefix=NEST
// RUN: not rhino-opt %s --pass-pipeline='builtin.module()' --cse 2>&1 | filecheck %s --check-prefix=BOTH

// OPEN: <pass-pipeline>:1:19: error: expected ')' to close 'builtin.module('
// COMMA: <pass-pipeline>:1:20: error: expected a pass after ','
// SPACE: <pass-pipeline>:1:20: error: expected ',' between passes, got 'i'
// BRACE: <pass-pipeline>:1:38: error: expected '}' before the end of the text
// ANCHOR: <pass-pipeline>:1:1: error: expected the pipeline to be wrapped in its anchor op
// ANCHOR: note: write builtin.module(cse)
// FUNC: <pass-pipeline>:1:1: error: cannot run a pipeline anchored on 'func.func' on a 'builtin.module' op
// NEST: <pass-pipeline>:1:26: error: 'rhino-verify' runs on 'builtin.module', not on 'func.func'
// BOTH: error: --pass-pipeline cannot be combined with passes as flags
func.func @main() {
  return
}
