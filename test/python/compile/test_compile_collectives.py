"""Counting collectives in HLO text: every spelling, loops, branches, async wrappers, and the byte formulas."""

from __future__ import annotations

import pytest

from rhino.compile.collectives import (
    Collective,
    collective_bytes,
    collective_counts,
    read_collectives,
    read_sites,
    sent_bytes,
)

ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))


def hlo(body: str, *others: str) -> str:
    """A module on 8 devices whose entry has %p: f32[8,16] (512 bytes) and %h: bf16[8,16] (256 bytes)."""
    add = "%add (a: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  ROOT %s = f32[] add(%a, %a)\n}\n"
    entry = (
        "ENTRY %main (p: f32[8,16], h: bf16[8,16]) -> f32[] {\n  %p = f32[8,16]{1,0} parameter(0)\n"
        f"  %h = bf16[8,16]{{1,0}} parameter(1)\n  {body.strip()}\n}}\n"
    )
    return "\n".join(["HloModule m, num_partitions=8\n", add, *others, entry])


GLOBAL = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 1500),
        ("all-gather", 3000),
        ("reduce-scatter", 750),
        ("all-to-all", 750),
        ("collective-permute", 1000),
    ],
)
def test_sent_bytes_follow_the_ring_formulas(kind: str, sent: int) -> None:
    # V is 1000 for all-reduce and reduce-scatter, 4000 for all-gather and all-to-all: 2V(n-1)/n, V(n-1)/n, V(n-1)/n^2.
    assert sent_bytes(kind, operand_bytes=1000, group_size=4) == sent
    assert sent_bytes(kind, operand_bytes=1000, group_size=1) == 0


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        (f"ROOT %c = f32[8,16] all-reduce(%p), {GLOBAL}, to_apply=%add", "all-reduce", 768),
        (f"ROOT %c = f32[8,16] all-reduce-start(%p), {GLOBAL}, to_apply=%add", "all-reduce", 768),
        (f"ROOT %c = f32[32,16] all-gather(%p), {GLOBAL}, dimensions={{0}}", "all-gather", 1536),
        (f"ROOT %c = (f32[8,16], f32[32,16]) all-gather-start(%p), {GLOBAL}, dimensions={{0}}", "all-gather", 1536),
        (f"ROOT %c = f32[2,16] reduce-scatter(%p), {GLOBAL}, dimensions={{0}}, to_apply=%add", "reduce-scatter", 384),
        (f"ROOT %c = ((f32[8,16]), f32[2,16]) reduce-scatter-start(%p), {GLOBAL}", "reduce-scatter", 384),
        ("ROOT %c = f32[8,16] all-to-all(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}", "all-to-all", 384),
    ],
)
def test_sync_and_async_spellings(line: str, kind: str, sent: int) -> None:
    assert read_collectives(hlo(line)) == (Collective(kind, 1, sent, 4, ROWS, "f32"),)


def test_done_is_not_counted_again() -> None:
    body = f"%c = f32[8,16] all-reduce-start(%p), {GLOBAL}, to_apply=%add\n  ROOT %d = f32[8,16] all-reduce-done(%c)"
    assert collective_counts(read_collectives(hlo(body))) == {"all-reduce": 1}


def test_a_combined_collective_counts_once_with_all_its_bytes() -> None:
    body = f"ROOT %c = (f32[8,16], bf16[8,16]) all-reduce(%p, %h), {GLOBAL}, to_apply=%add"
    assert read_collectives(hlo(body)) == (Collective("all-reduce", 1, 2 * (512 + 256) * 3 // 4, 4, ROWS, "f32+bf16"),)


@pytest.mark.parametrize(
    ("hlo_type", "element"),
    [("s32", "i32"), ("u8", "ui8"), ("pred", "i1"), ("f8e4m3fn", "f8E4M3FN"), ("c64", "complex<f32>")],
)
def test_types_are_spelled_as_mlir_does(hlo_type: str, element: str) -> None:
    body = f"%n = {hlo_type}[8,16] copy(%q)\n  ROOT %c = {hlo_type}[32,16] all-gather(%n), {GLOBAL}, dimensions={{0}}"
    assert read_collectives(hlo(body))[0].dtype == element


def test_variadic_all_to_all_counts_all_its_pieces() -> None:
    body = "ROOT %c = (f32[8,16], f32[8,16]) all-to-all(%p, /*index=1*/%p), channel_id=1, replica_groups={{0,1},{2,3}}"
    assert read_collectives(hlo(body))[0].bytes == 2 * 512 // 2


@pytest.mark.parametrize(
    ("pairs", "groups", "size"),
    [
        ("{{0,1},{1,2},{2,3},{3,0}}", ((0, 1, 2, 3),), 4),
        ("{{0,4},{4,0},{1,5},{5,1}}", ((0, 4), (1, 5)), 2),
        ("{{0,0},{2,3}}", ((2, 3),), 2),
    ],
)
def test_permutes_send_their_operand_within_the_devices_they_connect(
    pairs: str, groups: tuple[tuple[int, ...], ...], size: int
) -> None:
    body = f"ROOT %c = f32[8,16] collective-permute(%p), channel_id=1, source_target_pairs={pairs}"
    assert read_collectives(hlo(body)) == (Collective("collective-permute", 1, 512, size, groups, "f32"),)


@pytest.mark.parametrize(
    "line",
    [
        "ROOT %c = f32[8,16] all-reduce(%p), channel_id=1, replica_groups=[8,1]<=[8], use_global_device_ids=true",
        "ROOT %c = f32[8,16] collective-permute(%p), channel_id=1, source_target_pairs={{0,0},{1,1}}",
    ],
)
def test_groups_of_one_do_not_communicate(line: str) -> None:
    assert read_collectives(hlo(line)) == ()


def test_no_groups_means_all_devices() -> None:
    body = (
        "ROOT %c = f32[8,16] all-reduce(%p), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=%add"
    )
    assert read_collectives(hlo(body))[0].groups == ((0, 1, 2, 3, 4, 5, 6, 7),)


def test_without_global_ids_a_group_of_replicas_has_all_their_partitions() -> None:
    body = "ROOT %c = f32[8,16] all-reduce(%p), channel_id=1, replica_groups={{0}}, to_apply=%add"
    assert read_collectives(hlo(body))[0].group_size == 8


WRAPPED = f"""%wrapped (w: f32[8,16]) -> f32[8,16] {{
  %w = f32[8,16]{{1,0}} parameter(0)
  ROOT %inner = f32[8,16]{{1,0}} all-reduce(%w), {GLOBAL}, to_apply=%add
}}
"""


@pytest.mark.parametrize(
    "body",
    [
        "ROOT %f = f32[8,16] fusion(%p), kind=kCustom, calls=%wrapped",
        "%s = ((f32[8,16]), f32[8,16]) fusion-start(%p), calls=%wrapped\n  ROOT %d = f32[8,16] fusion-done(%s)",
        "%s = (f32[8,16]) async-start(%p), calls=%wrapped\n  ROOT %d = f32[8,16] async-done(%s), calls=%wrapped",
        "ROOT %f = f32[8,16] call(%p), to_apply=%wrapped",
    ],
)
def test_collectives_inside_called_computations_are_found_once(body: str) -> None:
    assert read_collectives(hlo(body, WRAPPED)) == (Collective("all-reduce", 1, 768, 4, ROWS, "f32"),)


LOOPING = """%cond (s: (f32[8,16])) -> pred[] {{
  %s = (f32[8,16]) parameter(0)
  ROOT %go = pred[] custom-call(%s), custom_call_target="ask"
}}

%body (t: (f32[8,16])) -> (f32[8,16]) {{
  %t = (f32[8,16]) parameter(0)
  %v = f32[8,16] get-tuple-element(%t), index=0
  {inner}
  ROOT %r = (f32[8,16]) tuple(%v)
}}
"""
REDUCE = f"%c = f32[8,16] all-reduce(%v), {GLOBAL}, to_apply=%add"


def while_loop(trips: int | None) -> str:
    config = "" if trips is None else f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return f"%t0 = (f32[8,16]) tuple(%p)\n  ROOT %l = (f32[8,16]) while(%t0), condition=%cond, body=%body{config}"


def test_loops_multiply() -> None:
    rows = read_collectives(hlo(while_loop(5), LOOPING.format(inner=REDUCE)))
    assert rows == (Collective("all-reduce", 5, 5 * 768, 4, ROWS, "f32"),)


def test_nested_loops_multiply_twice() -> None:
    inner = '%n = (f32[8,16]) while(%t), condition=%cond2, body=%body2, backend_config={"known_trip_count":{"n":"3"}}'
    nested = LOOPING.format(inner=REDUCE).replace("%cond ", "%cond2 ").replace("%body ", "%body2 ")
    text = hlo(while_loop(5), nested, LOOPING.format(inner=inner))
    assert collective_counts(read_collectives(text)) == {"all-reduce": 15}


def test_a_loop_that_never_runs_sends_nothing() -> None:
    assert read_collectives(hlo(while_loop(0), LOOPING.format(inner=REDUCE))) == ()


def test_a_loop_of_unknown_length_counts_once_and_says_so() -> None:
    row = read_collectives(hlo(while_loop(None), LOOPING.format(inner=REDUCE)))[0]
    assert (row.count, row.bytes, row.in_unknown_loop) == (1, 768, True)


def test_the_dearest_branch_of_a_conditional_counts() -> None:
    quiet = "%quiet (w: f32[8,16]) -> f32[8,16] {\n  ROOT %w = f32[8,16] parameter(0)\n}\n"
    body = (
        "%i = s32[] constant(0)\n  ROOT %c = f32[8,16] conditional(%i, %p, %p), branch_computations={%quiet, %wrapped}"
    )
    assert collective_bytes(read_collectives(hlo(body, quiet, WRAPPED))) == {"all-reduce": 768}


def test_equal_collectives_merge_and_others_do_not() -> None:
    body = (
        f"%c1 = f32[8,16] all-reduce(%p), {GLOBAL}, to_apply=%add\n  "
        f"%c2 = f32[8,16] all-reduce(%c1), {GLOBAL}, to_apply=%add\n  "
        f"%c3 = bf16[8,16] all-reduce(%h), {GLOBAL}, to_apply=%add\n  "
        "ROOT %c4 = f32[8,16] all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true"
    )
    rows = read_collectives(hlo(body))
    assert [(r.dtype, r.group_size, r.count, r.bytes) for r in rows] == [
        ("f32", 2, 1, 512),
        ("bf16", 4, 1, 384),
        ("f32", 4, 2, 1536),
    ]
    assert collective_bytes(rows) == {"all-reduce": 512 + 384 + 1536}
    assert [site.name for site in read_sites(hlo(body))] == ["c1", "c2", "c3", "c4"]


def test_json_has_the_fixed_keys() -> None:
    row = read_collectives(hlo(f"ROOT %c = f32[8,16] all-reduce(%p), {GLOBAL}, to_apply=%add"))[0].to_json()
    assert {"kind": "all-reduce", "count": 1, "bytes": 768, "group_size": 4}.items() <= row.items()
