// Flags that only inform read no input.
// RUN: rhino-opt --version | filecheck %s --check-prefix=VERSION
// RUN: rhino-opt --show-dialects | filecheck %s --check-prefix=DIALECTS
// RUN: rhino-opt --list-passes | filecheck %s --check-prefix=PASSES

// VERSION: rhino {{[0-9.]+}}
// VERSION-NEXT: jaxlib {{[0-9.]+}}
// DIALECTS: builtin
// DIALECTS: func
// DIALECTS: mpmd
// DIALECTS: sdy
// DIALECTS: stablehlo
// DIALECTS: rhino
// PASSES: {{^}}rhino-classify-args
// PASSES: {{^}}rhino-auto
// PASSES: {{^}}cse
// PASSES: {{^}}sdy-propagation-pipeline
