"""What instructions of compiled programs move and compute, in closed form."""

from __future__ import annotations

import pytest

from rhino.compile.hlo import parse_hlo
from rhino.compile.hlo_traffic import work_of
from rhino.program.work import Work

N, ROWS = 4096, 64
HEAD = """HloModule m
%max (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] maximum(%a, %b)
}
"""


def work(fused: str, entry: str, root: str) -> Work:
    """Of the instruction %f that the entry ends in."""
    inside = f"%fused (x: f32[1]) -> f32[1] {{\n{fused}\n}}\n"
    module = parse_hlo(f"{HEAD}{inside}ENTRY %main (p: f32[1]) -> f32[1] {{\n{entry}\n{root}\n}}\n")
    main = module.computations["main"]
    return work_of(module, main, main.instructions["f"])


def fusion(result: str, operands: str, opcode: str = "fusion") -> str:
    return f"  ROOT %f = {result} {opcode}({operands}), kind=kLoop, calls=%fused"


def test_only_what_is_looked_up_is_read_through_what_is_element_wise() -> None:
    found = work(
        f"  %x = bf16[{N},{N}] parameter(0)\n  %i = s32[{ROWS},1] parameter(1)\n  %c = f32[{N},{N}] convert(%x)\n"
        f"  ROOT %g = f32[{ROWS},{N}] gather(%c, %i), offset_dims={{1}}",
        f"  %p = bf16[{N},{N}] parameter(0)\n  %i = s32[{ROWS},1] parameter(1)",
        fusion(f"f32[{ROWS},{N}]", "%p, %i"),
    )
    assert found.nbytes == ROWS * N * (2 + 4) + 4 * ROWS
    # As many are converted as are looked up.
    assert found.operations == 0.5 * ROWS * N


@pytest.mark.parametrize("dtype, nbytes, additions", [("f32", 4, 0), ("bf16", 2, 64 * 4096)])
def test_a_scatter_in_place_reads_and_writes_where_it_adds(dtype: str, nbytes: int, additions: int) -> None:
    table, update = f"{dtype}[16,{N}]", f"{dtype}[{ROWS},{N}]"
    found = work(
        f"  %x = {table} parameter(0)\n  %i = s32[{ROWS},1] parameter(1)\n  %u = {update} parameter(2)\n"
        f"  ROOT %s = {table} scatter(%x, %i, %u), update_window_dims={{1}}, to_apply=%max",
        f"  %p = {table} parameter(0)\n  %i = s32[{ROWS},1] parameter(1)\n  %u = {update} parameter(2)",
        fusion(table, "%p, %i, %u"),
    )
    # What is added, what it is added to, and the sums: whatever the table has.
    assert found.nbytes == 3 * nbytes * N * ROWS + 4 * ROWS
    assert (found.additions, found.clashes) == (additions, 3.0 if additions else 0.0)


def test_what_is_begun_beside_others_is_a_fusion_too() -> None:
    inside = f"  %x = f32[{N}] parameter(0)\n  ROOT %t = f32[{N}] tanh(%x)"
    entry = f"  %p = f32[{N}] parameter(0)"
    plain = work(inside, entry, fusion(f"f32[{N}]", "%p"))
    begun = work(inside, entry, fusion(f"((f32[{N}]), f32[{N}], u32[])", "%p", "fusion-start"))
    assert plain == begun == Work(2.0 * 4 * N, 15.0 * N)


SOFTMAX = f"""  %x = f32[{ROWS},{N}] parameter(0)
  %o = f32[] constant(0)
  %r = f32[{ROWS}] reduce(%x, %o), dimensions={{1}}, to_apply=%max
  %b = f32[{ROWS},{N}] broadcast(%r), dimensions={{0}}
  %d = f32[{ROWS},{N}] subtract(%x, %b)
  %e = f32[{ROWS},{N}] exponential(%d)
"""


def test_exponentials_of_rows_count_for_each_sum_that_follows_the_other() -> None:
    entry = f"  %p = f32[{ROWS},{N}] parameter(0)"
    one = work(SOFTMAX + f"  ROOT %n = f32[{ROWS},{N}] negate(%e)", entry, fusion(f"f32[{ROWS},{N}]", "%p"))
    assert one.row_exponentials == ROWS * N
    two = work(
        SOFTMAX + f"  %s = f32[{ROWS}] reduce(%e, %o), dimensions={{1}}, to_apply=%max\n"
        f"  %c = f32[{ROWS},{N}] broadcast(%s), dimensions={{0}}\n  ROOT %q = f32[{ROWS},{N}] divide(%e, %c)",
        entry,
        fusion(f"f32[{ROWS},{N}]", "%p"),
    )
    assert two.row_exponentials == 4 * ROWS * N
    # A sum that is written does not come back.
    written = work(
        SOFTMAX + f"  ROOT %s = f32[{ROWS}] reduce(%e, %o), dimensions={{1}}, to_apply=%max",
        entry,
        fusion(f"f32[{ROWS}]", "%p"),
    )
    assert written.row_exponentials == ROWS * N
    assert written.nbytes == 4 * ROWS * (N + 1)


def test_of_what_is_padded_or_sliced_the_rest_is_not_computed() -> None:
    found = work(
        f"  %x = f32[{N}] parameter(0)\n  %t = f32[{N}] tanh(%x)\n  ROOT %s = f32[64] slice(%t), slice={{[0:64]}}",
        f"  %p = f32[{N}] parameter(0)",
        fusion("f32[64]", "%p"),
    )
    assert found == Work(4.0 * (64 + 64), 15.0 * 64)
