// MLIR prints the reason for refusing a C++ pass's option past us, to the process's standard error: it is caught, and one
// clean error comes out.
// RUN: not rhino-opt %s --cse=fast=true > %t 2>&1
// RUN: filecheck %s --check-prefix=UNKNOWN --input-file %t
// RUN: not rhino-opt %s --canonicalize=max-iterations=many > %t 2>&1
// RUN: filecheck %s --check-prefix=TYPE --input-file %t
// RUN: not rhino-opt %s --pass-pipeline='builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=maybe}))' > %t 2>&1
// RUN: filecheck %s --check-prefix=BOOL --input-file %t

// UNKNOWN-NOT: Pass-Options-Parser
// UNKNOWN: <pass-pipeline>:1:1: error: 'cse' has no option 'fast'
// UNKNOWN-NOT: error
// TYPE-NOT: {{^}}:
// TYPE: error: 'canonicalize': option 'max-iterations' is 'many' but must be an integer
// TYPE-NOT: error
// BOOL: <pass-pipeline>:1:26: error: 'sdy-insert-explicit-reshards': option 'enable-full-version' is 'maybe' but must be true or false
func.func @main() {
  return
}
