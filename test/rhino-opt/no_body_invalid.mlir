// A function without a body makes these C++ passes read past its end: refused before they start.
// RUN: rhino-opt %s --sdy-insert-explicit-reshards=enable-full-version=true --verify-diagnostics
// RUN: rhino-opt %s --sdy-close-shardings --verify-diagnostics
// RUN: rhino-opt %s --sdy-user-priority-propagate --verify-diagnostics

// expected-error-re @+2 {{'sdy-{{.*}}' cannot run on a module with a function that has no body, @declared}}
// expected-note @+1 {{define the function or remove the declaration}}
func.func private @declared(tensor<4xf32>)
func.func @main() {
  return
}
