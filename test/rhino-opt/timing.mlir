// The time report has a row for the parser, each pass and the printer, and goes to standard error.
// RUN: rhino-opt %s --cse --rhino-verify --mlir-timing 2>&1 >%t | filecheck %s

// CHECK: Execution time report
// CHECK: Total Execution Time: {{[0-9.]+}} seconds
// CHECK: ----Wall Time----  ----Name----
// CHECK-NEXT: {{[0-9.]+ +\( *[0-9.]+%\)}}  Parser
// CHECK-NEXT: cse
// CHECK-NEXT: rhino-verify
// CHECK-NEXT: Output
// CHECK-NEXT: Rest
// CHECK-NEXT: 100.0%)  Total
func.func @main() {
  return
}
