"""The reader of HLO text: shapes, instructions, device groups, trip counts."""

from __future__ import annotations

import pytest

from rhino.compile.hlo import HloTensor, Instruction, called_computations, parse_hlo
from rhino.compile.hlo_groups import parse_groups, source_target_pairs
from rhino.compile.hlo_loops import trip_count

TEXT = """HloModule step, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}, num_partitions=8

FileNames
1 "/home/me/all-reduce(x).py"

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main_spmd (p: f32[8,4], q: (s32[], bf16[3,2])) -> f32[8,4] {
  %p = f32[8,4]{1,0:T(8,128)S(1)} parameter(0), metadata={op_name="f(\\"x\\") all-gather(y), calls=%no"}
  %q = (s32[], bf16[3,2]{1,0}, /*index=2*/pred[7]{0}) parameter(1)
  %scale.1 = f32[] constant(2.5)
  %table = s32[4]{0} constant({0, 1, 2, 3})
  ROOT %all-reduce = f32[8,4]{1,0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
}
"""


def instruction(text: str) -> Instruction:
    module = parse_hlo(f"HloModule m\n\nENTRY %e (a: f32[]) -> f32[] {{\n  ROOT {text}\n}}\n")
    entry = module.computations[module.entry]
    return entry.instructions[entry.root]


def test_module_has_computations_entry_root_and_partitions() -> None:
    module = parse_hlo(TEXT)
    assert list(module.computations) == ["add", "main_spmd"]
    assert (module.entry, module.partitions, module.replicas, module.devices) == ("main_spmd", 8, 1, 8)
    assert module.computations["main_spmd"].root == "all-reduce"


def test_text_in_metadata_is_not_read_as_structure() -> None:
    p = parse_hlo(TEXT).computations["main_spmd"].instructions["p"]
    assert (p.opcode, p.operands, called_computations(p)) == ("parameter", (), {})


def test_shapes_with_layouts_tiles_memory_spaces_and_tuples() -> None:
    entry = parse_hlo(TEXT).computations["main_spmd"]
    assert entry.instructions["p"].result == (HloTensor("f32", (8, 4)),)
    assert entry.instructions["q"].result == (HloTensor("s32", ()), HloTensor("bf16", (3, 2)), HloTensor("pred", (7,)))
    assert [t.size_bytes for t in entry.instructions["q"].result] == [4, 12, 7]
    assert entry.operand_tensors(entry.instructions["all-reduce"]) == (HloTensor("f32", (8, 4)),)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("f32", (2, 3), 24),
        ("bf16", (5,), 10),
        ("f8e4m3fn", (4,), 4),
        ("c64", (2,), 16),
        ("s4", (3,), 2),
        ("token", (), 0),
    ],
)
def test_sizes(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert HloTensor(dtype, shape).size_bytes == size


def test_constants_keep_their_text() -> None:
    entry = parse_hlo(TEXT).computations["main_spmd"]
    assert entry.instructions["scale.1"].literal == "2.5"
    assert entry.instructions["table"].literal == "{0, 1, 2, 3}"


def test_called_computations_of_every_attribute() -> None:
    one = instruction("%w = f32[] while(%t), condition=%cond.1, body=%body.1")
    assert called_computations(one) == {"condition": ["cond.1"], "body": ["body.1"]}
    many = instruction("%c = f32[] conditional(%i, %a, %b), branch_computations={%left, %right}")
    assert called_computations(many) == {"branch_computations": ["left", "right"]}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}, dimensions={0}", ((0, 1), (2, 3))),
        ("{{0,1,2},{3}}", ((0, 1, 2), (3,))),
        ("{}, to_apply=%add", ()),
        ("[2,4]<=[8], x=1", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0), x=1", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[4,2]<=[2,2,2]T(1,0,2)", ((0, 1), (4, 5), (2, 3), (6, 7))),
        ("mesh['x'=2,'y'=4] {'y'}, x=1", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=4] {'x'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=4] {'x','y'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=4], device_ids=(3,2,1,0) {'a'}", ((3, 2, 1, 0),)),
    ],
)
def test_replica_groups_in_every_syntax(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(text) == groups


def test_unknown_replica_groups_are_an_error() -> None:
    with pytest.raises(ValueError, match="unknown replica groups: <future>"):
        parse_groups("<future>")


def test_pairs_of_a_permute_and_of_the_send_it_becomes() -> None:
    permute = instruction("%c = f32[2] collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,0}}")
    send = instruction(
        '%s = (f32[2], u32[], token[]) send(%a, %t), frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1}}"}'
    )
    assert source_target_pairs(permute) == ((0, 1), (1, 0))
    assert source_target_pairs(send) == ((0, 1),)
    assert source_target_pairs(instruction("%n = f32[] negate(%a)")) is None


LOOP = """HloModule m

%wrapped_compare (p0: s32[], p1: s32[]) -> pred[] {{
  %p0 = s32[] parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %lt = pred[] compare(%p0, %p1), direction={direction}
}}

%cond (s: (s32[], f32[])) -> pred[] {{
  %s = (s32[], f32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant({end})
  ROOT %{condition}
}}

%body (t: (s32[], f32[])) -> (s32[], f32[]) {{
  %t = (s32[], f32[]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %step = s32[] constant({step})
  %k = s32[] add(%j, %step)
  %v = f32[] get-tuple-element(%t), index=1
  ROOT %r = (s32[], f32[]) tuple(%k, %v)
}}

ENTRY %main (x: f32[]) -> (s32[], f32[]) {{
  %x = f32[] parameter(0)
  %start = s32[] constant({start})
  %init = s32[] copy(%start)
  %tuple = (s32[], f32[]) tuple(%init, %x)
  ROOT %loop = (s32[], f32[]) while(%tuple), condition=%cond, body=%body{config}
}}
"""
PLAIN = "c = pred[] compare(%i, %end), direction={direction}"
FUSED = "c = pred[] fusion(%i, %end), kind=kLoop, calls=%wrapped_compare"


@pytest.mark.parametrize("condition", [PLAIN, FUSED])
@pytest.mark.parametrize(
    ("start", "end", "step", "direction", "trips"),
    [
        (0, 5, 1, "LT", 5),
        (2, 5, 1, "LE", 4),
        (0, 5, 2, "LT", 3),
        (7, 5, 1, "LT", 0),
        (0, 5, 1, "GT", None),
        (0, 5, 0, "LT", None),
    ],
)
def test_trips_are_derived_from_the_counter(
    condition: str, start: int, end: int, step: int, direction: str, trips: int | None
) -> None:
    condition = condition.format(direction=direction)
    text = LOOP.format(start=start, end=end, step=step, direction=direction, condition=condition, config="")
    module = parse_hlo(text)
    main = module.computations["main"]
    assert trip_count(module, main, main.instructions["loop"]) == trips


def test_what_xla_wrote_down_wins() -> None:
    config = ', backend_config={"known_trip_count":{"n":"12"}}'
    condition = PLAIN.format(direction="GT")
    module = parse_hlo(LOOP.format(start=0, end=5, step=1, direction="GT", condition=condition, config=config))
    main = module.computations["main"]
    assert trip_count(module, main, main.instructions["loop"]) == 12


@pytest.mark.parametrize("text", ["", "HloModule m\n", "HloModule m\n\nENTRY %e () -> f32[] {\n  garbage\n}\n"])
def test_text_that_is_not_hlo_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="HLO"):
        parse_hlo(text)
