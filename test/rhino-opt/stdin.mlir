// Without a file, and with `-`, the module comes from standard input; errors then name <stdin>.
// RUN: rhino-opt < %s | filecheck %s
// RUN: rhino-opt - < %s | filecheck %s
// RUN: not rhino-opt --rhino-classify-args < %s 2>&1 | filecheck %s --check-prefix=ERROR

// CHECK: func.func @not_main
// ERROR: <stdin>:{{[0-9]+}}:{{[0-9]+}}: error: {{.*}}@main
func.func @not_main() {
  return
}
