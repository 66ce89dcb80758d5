// An empty file is a mistake more often than an empty module: refused. So is one with white space only.
// RUN: not rhino-opt /dev/null 2>&1 | filecheck %s
// RUN: not rhino-opt < /dev/null 2>&1 | filecheck %s --check-prefix=STDIN
// RUN: %python -c "print(' \n\t')" > %t.mlir
// RUN: not rhino-opt %t.mlir 2>&1 | filecheck %s --check-prefix=BLANK
// RUN: echo "module {}" | rhino-opt | filecheck %s --check-prefix=MODULE

// CHECK: /dev/null:1:1: error: the file is empty
// CHECK: note: a module with nothing in it is written `module {}`
// STDIN: <stdin>:1:1: error: standard input is empty
// BLANK: empty_file_invalid.mlir.tmp.mlir:1:1: error: the file is empty
// MODULE: module {
