// RUN: rhino-opt %s --rhino-verify --split-input-file --verify-diagnostics

// What runs holds what it saves.
// expected-error @+1 {{rhino.memory[1].loop_bytes is 1, but it includes the 2 of saved_bytes}}
module attributes {rhino.memory = [
  {argument_bytes = 8 : i64, kept_bytes = 4 : i64, saved_bytes = 2 : i64, loop_bytes = 3 : i64, update_bytes = 0 : i64},
  {argument_bytes = 8 : i64, kept_bytes = 4 : i64, saved_bytes = 2 : i64, loop_bytes = 1 : i64, update_bytes = 0 : i64}]} {
}

// -----

// expected-error @+1 {{rhino.memory[0]}}
module attributes {rhino.memory = [{argument_bytes = -8 : i64, kept_bytes = 4 : i64, saved_bytes = 2 : i64,
                                    loop_bytes = 3 : i64, update_bytes = 0 : i64}]} {
}
