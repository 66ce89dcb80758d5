// A missing file, and a folder instead of a file.
// RUN: not rhino-opt %t.missing.mlir 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not rhino-opt %S 2>&1 | filecheck %s --check-prefix=FOLDER

// MISSING: unreadable_invalid.mlir.tmp.missing.mlir:1:1: error: cannot read the file: no such file or directory
// FOLDER: rhino-opt:1:1: error: cannot read the file: is a directory
