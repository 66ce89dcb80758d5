"""Behaviours of XLA that Rhino keeps programs away from: wrong numbers, refusals, the end of the process.

Programs of wrong numbers run on 8 CPU devices; those that end the process are compiled in one of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rhino.xla.behaviour import Behaviour, Compiled, Probe, program
from rhino.xla.collectives import M, count, dot


def differs(compiled: Compiled, given: tuple[Any, ...], wanted: Any) -> bool:
    """Whether the program's first result is not what StableHLO says."""
    return not np.allclose(np.asarray(compiled(*given)[0]), wanted)


def _reduced(reducer: str, dtype: str) -> str:
    start = "false" if dtype == "i1" else "1.0" if "f" in dtype else "0"
    return program(
        f"%a: tensor<16x2x{dtype}> @[x, -] -> tensor<2x{dtype}> @[-]",
        f"""%s = stablehlo.constant dense<{start}> : tensor<{dtype}>
        %0 = stablehlo.reduce(%a init: %s) across dimensions = [0]
          : (tensor<16x2x{dtype}>, tensor<{dtype}>) -> tensor<2x{dtype}>
          reducer(%p: tensor<{dtype}>, %q: tensor<{dtype}>) {{
          {reducer}
          stablehlo.return %t : tensor<{dtype}>
        }}
        return %0 : tensor<2x{dtype}>""",
    )


_SQUARE = "%m = stablehlo.multiply %p, %q : tensor<f32>\n%n = stablehlo.add %p, %q : tensor<f32>\n"
_OTHER = _SQUARE + "%t = stablehlo.add %m, %n : tensor<f32>"
_X = np.arange(10, 14, dtype=np.int32)
_IMAGE = np.arange(8 * 4 * 8, dtype=np.float32).reshape(8, 4, 8)
_WIDE = "tensor<1x16x4xf32>"
_POOLED = -1 - np.arange(64, dtype=np.float32).reshape(1, 16, 4) / 64


def _grouped(groups: int, dims: str) -> str:
    kernel = f"tensor<1x{8 // groups}x8xf32>"
    return program(
        f"%x: tensor<8x4x8xf32> @[{dims}], %k: {kernel} @[-, -, -] -> tensor<8x4x8xf32> @[{dims}]",
        f"""%0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
          window = {{stride = [1], pad = [[0, 0]]}}
          {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
          : (tensor<8x4x8xf32>, {kernel}) -> tensor<8x4x8xf32>
        return %0 : tensor<8x4x8xf32>""",
        "x=2 y=4",
    )


def _nan_passed_over(compiled: Compiled) -> bool:
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    values[3, 0] = np.nan
    return not np.isnan(np.asarray(compiled(values)[0])[0])


def _slice_of_slice(compiled: Compiled) -> bool:
    x = np.arange(5, dtype=np.float32)
    return any(differs(compiled, (x, np.int32(at)), x[min(max(at, 0), 3) :][:2]) for at in (-3, 1, 3, 4, 9))


def _update(rows: int, index: str, dtype: str) -> str:
    table, row = f"tensor<{rows}x2x{dtype}>", f"tensor<1x2x{dtype}>"
    return program(
        f"%x: {table} @[y, -], %row: {row} @[-, -], %at: tensor<{index}> @[] -> {table} @[y, -]",
        f"""%none = stablehlo.constant dense<0> : tensor<{index}>
        %0 = stablehlo.dynamic_update_slice %x, %row, %at, %none
          : ({table}, {row}, tensor<{index}>, tensor<{index}>) -> {table}
        return %0 : {table}""",
        "x=2 y=4",
    )


def _row_lost(compiled: Compiled, at: Any) -> bool:
    wanted = np.zeros((16, 2), np.float32)
    wanted[min(max(int(at), 0), 15)] = 1
    return differs(compiled, (np.zeros((16, 2), np.float32), np.ones((1, 2), np.float32), at), wanted)


_GREATEST = program(
    "%a: tensor<64x8xbf16> @[x, -], %i: tensor<64x8xi32> @[x, -] -> tensor<8xbf16> @[-]",
    """%low = stablehlo.constant dense<0xFF80> : tensor<bf16>
    %none = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.reduce(%a init: %low), (%i init: %none) across dimensions = [0]
      : (tensor<64x8xbf16>, tensor<64x8xi32>, tensor<bf16>, tensor<i32>) -> (tensor<8xbf16>, tensor<8xi32>)
      reducer(%p: tensor<bf16>, %q: tensor<bf16>) (%j: tensor<i32>, %k: tensor<i32>) {
      %more = stablehlo.compare GT, %p, %q : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %nan = stablehlo.compare NE, %p, %p : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %first = stablehlo.or %more, %nan : tensor<i1>
      %s = stablehlo.select %first, %p, %q : tensor<i1>, tensor<bf16>
      %t = stablehlo.select %first, %j, %k : tensor<i1>, tensor<i32>
      stablehlo.return %s, %t : tensor<bf16>, tensor<i32>
    }
    return %r#0 : tensor<8xbf16>""",
)
_BATCH_GROUPS = program(
    "%x: tensor<4x12x2xf32> @[-, -, y], %k: tensor<2x3x2xf32> @[-, -, y] -> tensor<12x2x2xf32> @[-, -, -]",
    """%0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[o, 0, i]->[0, f, b],
      window = {stride = [1], pad = [[1, 1]]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64}
      : (tensor<4x12x2xf32>, tensor<2x3x2xf32>) -> tensor<12x2x2xf32>
    return %0 : tensor<12x2x2xf32>""",
    "x=4 y=2",
)


def _summed_too_often(compiled: Compiled) -> bool:
    # Each of the inner elements is the sum of 3 x 2 ones.
    found = np.asarray(compiled(np.ones((4, 12, 2), np.float32), np.ones((2, 3, 2), np.float32))[0])
    return bool(found[5, 0, 0] > 6)


_CONVOLVED = f"""stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
      window = {{stride = [1], pad = [[1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({_WIDE}, tensor<3x4x4xf32>) -> {_WIDE}"""

FAULTS = (
    Behaviour(
        "start-counts-on-each-device",
        "The start of a reduction is taken for neutral: each device's part begins at it.",
        "the partitioner's reduce handler",
        probe=Probe(
            _reduced("%t = stablehlo.add %p, %q : tensor<f32>", "f32"),
            lambda c: differs(c, (np.ones((16, 2), np.float32),), np.full(2, 17.0)),
        ),
        where=("cpu",),
    ),
    Behaviour(
        "other-reducers-refused",
        "Where devices share a reduction by what no all-reduce knows, the program is refused, or the process ends.",
        "all_reduce_thunk.cc",
        probe=Probe(_reduced(_OTHER, "f32"), refused="Unsupported reduction computation", fatal=True),
    ),
    Behaviour(
        "uneven-scatters-wrong",
        "Where indices and updates of a scatter are split into parts that differ, the padding is applied, too.",
        "the partitioner's scatter handler",
        unprobed="Sixteen programs with both split so, of sums, products and extremes, were right with 0.10.2; which "
        "are wrong is not known.",
    ),
    Behaviour(
        "moved-axes-gathered",
        "What a product reads and another reader has with an axis on another dimension is gathered whole for that: "
        "the product leaves it with a sharding of another form, from which no all-to-all begins.",
        "spmd_partitioner.cc, with HloShardingV3",
        probe=Probe(
            program(
                f"%a: {M} @[x, -], %w: {M} @[-, y] -> {M} @[x, y]",
                f"{dot('0', 'a', 'w')}%1 = sdy.sharding_constraint %0 @[x, y] : {M}\n"
                f"%2 = sdy.sharding_constraint %w @[y, -] : {M}\n%3 = sdy.sharding_constraint %1 @[x, -] : {M}\n"
                f"%4 = stablehlo.dot_general %3, %2, contracting_dims = [1] x [1] : ({M}, {M}) -> {M}\n"
                f"return %4 : {M}",
                "x=2 y=4",
            ),
            lambda c: count(c, "all-to-all") == 0,
        ),
        since="0.12.0.1",
    ),
    Behaviour(
        "slices-of-slices-merge",
        "A slice of a slice at places that only the run knows becomes one, and bounds the sum of both starts: one that "
        "is out of range reads other elements.",
        "AlgebraicSimplifier",
        probe=Probe(
            program(
                "%x: tensor<5xf32> @[-], %at: tensor<i32> @[] -> tensor<2xf32> @[x]",
                """%0 = stablehlo.dynamic_slice %x, %at, sizes = [2] : (tensor<5xf32>, tensor<i32>) -> tensor<2xf32>
                return %0 : tensor<2xf32>""",
                "x=2 y=4",
            ),
            _slice_of_slice,
        ),
        where=("cpu",),
        until="0.12.0.1",
    ),
    Behaviour(
        "updates-beyond-the-end-lost",
        "An update of a split dimension that begins beyond its end is dropped, and not moved to the end.",
        "the partitioner's handler of dynamic-update-slice",
        probe=Probe(_update(16, "i32", "f32"), lambda c: _row_lost(c, np.int32(100))),
        where=("cpu",),
    ),
    Behaviour(
        "update-starts-in-32-bits",
        "Where an update of a split dimension begins is counted in 32 bits.",
        "the partitioner's handler of dynamic-update-slice",
        probe=Probe(_update(16, "i64", "f32"), lambda c: _row_lost(c, np.int64(2**32 + 1))),
        where=("cpu",),
    ),
    Behaviour(
        "scatters-of-one-window-misread",
        "A scatter of one window becomes an update of a slice; what that keeps it takes from the wrong place of a "
        "tensor that had another layout.",
        probe=Probe(
            program(
                "%x: tensor<4xi32> @[-], %new: tensor<1xi32> @[-], %at: tensor<1x1xi32> @[-, -] -> tensor<4xi32> @[-]",
                """%0 = sdy.sharding_constraint %x @[y] : tensor<4xi32>
                %1 = "stablehlo.scatter"(%0, %at, %new) ({
                  ^bb0(%old: tensor<i32>, %put: tensor<i32>):
                    stablehlo.return %put : tensor<i32>
                }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
                  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
                  : (tensor<4xi32>, tensor<1x1xi32>, tensor<1xi32>) -> tensor<4xi32>
                %2 = sdy.sharding_constraint %1 @[y] : tensor<4xi32>
                return %2 : tensor<4xi32>""",
                "x=4 y=2",
            ),
            lambda c: any(
                differs(
                    c, (_X, np.array([99], np.int32), np.array([[at]], np.int32)), np.where(np.arange(4) == at, 99, _X)
                )
                for at in (-1, 0, 1, 3, 4)
            ),
        ),
        where=("cpu",),
        until="0.12.0.1",
    ),
    Behaviour(
        "windows-share-a-filling",
        "What windows reach of other devices' parts is fetched once for equal windows, whatever they fill up with: a "
        "convolution beside a maximum pool reads infinities at the borders.",
        "the partitioner's cache of windows",
        probe=Probe(
            program(
                f"%x: {_WIDE} @[-, x, -], %w: tensor<3x4x4xf32> @[-, -, -] -> {_WIDE} @[-, x, -], {_WIDE} @[-, x, -]",
                f"""%inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
                %0 = "stablehlo.reduce_window"(%x, %inf) ({{
                  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                    %c = stablehlo.maximum %a, %b : tensor<f32>
                    stablehlo.return %c : tensor<f32>
                }}) {{window_dimensions = array<i64: 1, 3, 1>,
                  padding = dense<[[0, 0], [1, 1], [0, 0]]> : tensor<3x2xi64>}} : ({_WIDE}, tensor<f32>) -> {_WIDE}
                %1 = {_CONVOLVED}
                return %0, %1 : {_WIDE}, {_WIDE}""",
            ),
            lambda c: not np.isfinite(np.asarray(c(_POOLED, np.ones((3, 4, 4), np.float32))[1])).all(),
        ),
        where=("cpu",),
        until="0.12.0.1",
    ),
    Behaviour(
        "summed-gathers-miscut",
        "Rows of a table that is split both ways, summed and divided along a dimension of the indices, which another "
        "axis divides, too: what is cut out is as wide as a whole row, and the program is refused.",
        "the partitioner's gather handler",
        probe=Probe(
            program(
                "%t: tensor<16x16xf32> @[x, z], %i: tensor<8x4x1xi32> @[y, -, -] -> tensor<8x4x16xf32> @[y+x, -, z]",
                """%0 = "stablehlo.gather"(%t, %i) {slice_sizes = array<i64: 1, 16>,
                  dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0],
                    start_index_map = [0], index_vector_dim = 2>}
                  : (tensor<16x16xf32>, tensor<8x4x1xi32>) -> tensor<8x4x16xf32>
                %1 = sdy.sharding_constraint %0 @[y+x, -, z] : tensor<8x4x16xf32>
                return %1 : tensor<8x4x16xf32>""",
                "x=2 y=2 z=2",
            ),
            refused="Slice dim size",
        ),
    ),
    Behaviour(
        "grouped-products-wrong",
        "A convolution of groups whose window does not move is taken for a product; where features are split, its "
        "groups are as many on each device: it is refused, computes wrong numbers, or the process ends.",
        "the partitioner's convolution handler",
        probe=Probe(_grouped(4, "-, -, y"), refused="divisible by feature_group_count", fatal=True),
    ),
    Behaviour(
        "own-calls-end-the-process",
        "A module that brings calls which XLA's own passes make later ends the process, or is refused.",
        "layout_assignment.cc",
        probe=Probe(
            program(
                "%a: tensor<64x64xf32> @[-, -], %b: tensor<64x64xf32> @[-, -] -> tensor<64x64xf32> @[-, -]",
                """%0:2 = stablehlo.custom_call @__cublas$lt$matmul(%a, %b) {backend_config = "{}"}
                  : (tensor<64x64xf32>, tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<1024xi8>)
                return %0#0 : tensor<64x64xf32>""",
                "x=1",
            ),
            fatal=True,
        ),
        where=("h100",),
    ),
    Behaviour(
        "stretched-pads-end-the-process",
        "A padding that puts values between the elements of a split dimension, and cuts its ends, ends the process for "
        "some widths.",
        probe=Probe(
            program(
                "%a: tensor<8x4xf32> @[x, -] -> tensor<16x4xf32> @[x, -]",
                """%z = stablehlo.constant dense<0.0> : tensor<f32>
                %0 = stablehlo.pad %a, %z, low = [-1, 0], high = [-5, 0], interior = [2, 0]
                  : (tensor<8x4xf32>, tensor<f32>) -> tensor<16x4xf32>
                return %0 : tensor<16x4xf32>""",
            ),
            fatal=True,
        ),
        where=("cpu",),
    ),
    Behaviour(
        "largest-passes-over-nan",
        "A largest value of all devices is that of the numbers: not a number on one of them is passed over.",
        "the all-reduce of CPUs",
        probe=Probe(
            program(
                "%a: tensor<8x2xf32> @[x, -] -> tensor<2xf32> @[-]",
                """%z = stablehlo.constant dense<0xFF800000> : tensor<f32>
                %0 = stablehlo.reduce(%a init: %z) applies stablehlo.maximum across dimensions = [0]
                  : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
                return %0 : tensor<2xf32>""",
            ),
            _nan_passed_over,
        ),
        where=("cpu",),
    ),
    Behaviour(
        "unread-results-dropped",
        "Of a reduction of several tensors, a result that nobody reads is dropped; what is left is a reducer that no "
        "all-reduce knows: where devices share it, the program is refused, or the process ends.",
        probe=Probe(_GREATEST, refused="Unsupported reduction computation", fatal=True),
    ),
    Behaviour(
        "batch-groups-summed-over-idle-axes",
        "A convolution that takes its groups from the batch, and sums over one axis of the mesh, adds up over an axis "
        "that splits nothing of it, too.",
        "the partitioner's convolution handler",
        probe=Probe(_BATCH_GROUPS, _summed_too_often),
        where=("cpu",),
    ),
    Behaviour(
        "bitcasts-merge",
        "Two bitcasts in a row, from narrow to wide to narrow elements, become one of another shape, which is refused.",
        "AlgebraicSimplifier",
        probe=Probe(
            program(
                "%a: tensor<8x2xbf16> @[-, -] -> tensor<8x4xui8> @[-, -]",
                """%0 = stablehlo.bitcast_convert %a : (tensor<8x2xbf16>) -> tensor<8xui32>
                %1 = stablehlo.bitcast_convert %0 : (tensor<8xui32>) -> tensor<8x4xui8>
                return %1 : tensor<8x4xui8>""",
                "x=1",
            ),
            refused="to have shape equal to",
        ),
    ),
)
