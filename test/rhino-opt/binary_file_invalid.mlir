// A file that is neither text nor bytecode is refused at its first such byte.
// RUN: %python -c "open(r'%t.elf', 'wb').write(bytes([127]) + b'ELF' + bytes(60))"
// RUN: not rhino-opt %t.elf 2>&1 | filecheck %s --check-prefix=NUL
// RUN: %python -c "open(r'%t.latin', 'wb').write(b'// a comment\n// caf' + bytes([233]) + b'\n')"
// RUN: not rhino-opt %t.latin 2>&1 | filecheck %s --check-prefix=LATIN

// NUL: binary_file_invalid.mlir.tmp.elf:1:5: error: neither MLIR text nor bytecode: byte 4 is 0x00
// LATIN: binary_file_invalid.mlir.tmp.latin:2:7: error: neither MLIR text nor bytecode: byte 19 is 0xe9
