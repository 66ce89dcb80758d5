// Operations of unknown dialects are errors unless allowed.
// RUN: rhino-opt %s --allow-unregistered-dialect | filecheck %s
// RUN: not rhino-opt %s 2>&1 | filecheck %s --check-prefix=ERROR

// CHECK: "acme.widget"(%{{.*}}) : (tensor<4xf32>) -> ()
// ERROR: unregistered_dialect.mlir:9:16: error: operation being parsed with an unregistered dialect
func.func @main(%x: tensor<4xf32>) {
  // The next line is 9.
  "acme.widget"(%x) : (tensor<4xf32>) -> ()
  return
}
