// -re makes the parts in inner braces regular expressions; the rest stays literal, brackets and dots included.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error-re @+1 {{rhino.placement.m{{[0-9]+}} lists device 1 twice}}
module attributes {rhino.placement = {m0 = [1, 1]}} {
  sdy.mesh @m0 = <["x"=2]>
}

// -----

// POSIX classes are known, as LLVM knows them.
// expected-error-re @+1 {{rhino.placement.{{[[:alpha:]_]}}{{[[:digit:]]+}} lists device {{[^[:space:][:punct:]]}} twice}}
module attributes {rhino.placement = {m0 = [1, 1]}} {
  sdy.mesh @m0 = <["x"=2]>
}
