// A missing file, and a folder instead of a file; and an output that has nowhere to go.
// RUN: not rhino-opt %t.missing.mlir 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not rhino-opt %S 2>&1 | filecheck %s --check-prefix=FOLDER
// RUN: echo "module {}" > %t.mlir
// RUN: not rhino-opt %t.mlir -o %t.folder/x.mlir 2>&1 | filecheck %s --check-prefix=OUTPUT

// MISSING: unreadable_invalid.mlir.tmp.missing.mlir:1:1: error: cannot read the file: no such file or directory
// MISSING-NEXT: note: give a .mlir or .mlirbc file, or - for standard input; jax writes one: jax.jit(step).lower(*args)
// FOLDER: rhino-opt:1:1: error: cannot read the file: is a directory
// OUTPUT: x.mlir': no such file or directory (give a file in a folder that exists)
