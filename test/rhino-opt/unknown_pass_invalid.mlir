// An unknown pass is an error at its column of the pipeline, with the closest name as a remedy.
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(cse,rhino-classfy-args)' 2>&1 | filecheck %s --check-prefix=PIPELINE
// RUN: not rhino-opt %s --sdy-no-such-pass 2>&1 | filecheck %s --check-prefix=NATIVE
// RUN: not rhino-opt %s --rhino-classfy-args 2>&1 | filecheck %s --check-prefix=FLAG

// PIPELINE: <pass-pipeline>:1:20: error: unknown pass 'rhino-classfy-args'
// PIPELINE-NEXT: builtin.module(cse,rhino-classfy-args)
// PIPELINE-NEXT: {{^ +\^}}
// PIPELINE-NEXT: <pass-pipeline>:1:20: note: did you mean 'rhino-classify-args'?
// NATIVE: <pass-pipeline>:1:1: error: unknown pass 'sdy-no-such-pass'
// NATIVE: note: rhino-opt --list-passes prints the names
// FLAG: error: unknown pass 'rhino-classfy-args'
// FLAG: note: did you mean 'rhino-classify-args'?
func.func @main() {
  return
}
