// A value of the wrong type names the option, the value and what was expected.
// RUN: not rhino-opt %s --rhino-classify-args=explain=maybe 2>&1 | filecheck %s --check-prefix=BOOL
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 memory-limit=lots" 2>&1 | filecheck %s --check-prefix=INT
// RUN: not rhino-opt %s --rhino-plan-sharding="topology=dgx-h100:1 level=O9" 2>&1 | filecheck %s --check-prefix=CHOICE

// BOOL: <pass-pipeline>:1:1: error: 'rhino-classify-args': option 'explain' is 'maybe' but must be true or false
// INT: error: 'rhino-plan-sharding': option 'memory-limit' is 'lots' but must be an integer
// CHOICE: error: 'rhino-plan-sharding': option 'level' is 'O9' but must be one of O0, O1, O2
func.func @main() {
  return
}
