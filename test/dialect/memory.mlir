// rhino.memory: bytes of a device of each stage, of which a peak follows for any task lists.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

// CHECK: rhino.memory = [{argument_bytes = 8 : i64, kept_bytes = 4 : i64, loop_bytes = 3 : i64, saved_bytes = 2 : i64, update_bytes = 0 : i64}]
module attributes {rhino.memory = [{argument_bytes = 8 : i64, kept_bytes = 4 : i64, saved_bytes = 2 : i64,
                                    loop_bytes = 3 : i64, update_bytes = 0 : i64}]} {
}
