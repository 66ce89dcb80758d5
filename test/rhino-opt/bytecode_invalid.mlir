// Damaged bytecode: cut short, and with a byte changed where a version is expected.
// RUN: rhino-opt %s --emit-bytecode -o %t.mlirbc
// RUN: %python -c "d = open(r'%t.mlirbc', 'rb').read(); open(r'%t.cut', 'wb').write(d[:60])"
// RUN: not rhino-opt %t.cut 2>&1 | filecheck %s --check-prefix=CUT
// RUN: %python -c "d = bytearray(open(r'%t.mlirbc', 'rb').read()); d[4] = 0xfe; open(r'%t.version', 'wb').write(d)"
// RUN: not rhino-opt %t.version 2>&1 | filecheck %s --check-prefix=VERSION

// CUT: bytecode_invalid.mlir.tmp.cut:1:1: error:
// VERSION: bytecode_invalid.mlir.tmp.version:1:1: error:
func.func @main() {
  return
}
