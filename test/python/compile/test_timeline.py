"""A compiled program in time: closed forms of what instructions take, and what two streams make of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rhino.compile.timeline import Timeline, read_timeline
from rhino.errors import RhinoError
from rhino.machine import Cluster, Device, Efficiency, Level
from rhino.machine.collectives import group_seconds
from rhino.machine.rates import AttentionRates, KernelRates, ProductRates

# 1 TB/s, 10 us for each kernel, 1 GB/s and no latency between devices. Products take 1 ms for 100 elements of each sum.
RATES = ProductRates(start_s=0.0, tile_s=0.0, tile_depth_s=1e-5, depth_s=0.0)
DEVICE = Device("h100", "h100", {"f32": 1e12}, 1 << 34, 1e12, KernelRates(1, 1e-5, {"f32": RATES}))
CLUSTER = Cluster("lab", 1, 4, DEVICE, (Level("intra-host", 4, 1e9, 0.0),))

HEAD = "HloModule m, is_scheduled=true, num_partitions=4\n"
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def timeline(entry: str, *computations: str, cluster: Cluster = CLUSTER) -> Timeline:
    return read_timeline(
        HEAD + "".join(computations) + "\nENTRY %main (p: f32[64]) -> f32[64] {\n" + entry + "\n}\n", cluster
    )


def test_a_kernel_launches_and_moves_what_it_reads_and_writes() -> None:
    found = timeline(
        "  %p = f32[1000000] parameter(0)\n  %c = f32[1000000] copy(%p)\n  ROOT %b = f32[1000,1000] bitcast(%c)"
    )
    assert found.total_s == pytest.approx(1e-5 + 8e6 / 1e12)
    assert found.compute_s == {"moves": pytest.approx(found.total_s)}
    assert (found.kernels, len(found.events)) == (1, 1)


@pytest.mark.parametrize("started", [True, False])
def test_a_row_comes_from_the_host_and_goes_back(started: bool) -> None:
    """1,000 elements of a stack that stays there, at 1 GB/s each way, by copies that are started or are waited for."""
    stack, row = "f32[100,1000]{1,0:S(5)}", "f32[1,1000]{1,0}"
    fused = f"""
%from (p0: f32[100,1000], i: s32[]) -> f32[1,1000] {{
  %p0 = {stack} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = {row} dynamic-slice(%p0, %i, %i), dynamic_slice_sizes={{1,1000}}
}}
%to (p0: f32[100,1000], p1: f32[1,1000], i: s32[]) -> f32[100,1000] {{
  %p0 = {stack} parameter(0)
  %p1 = {row} parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = {stack} dynamic-update-slice(%p0, %p1, %i, %i)
}}
"""
    copies = f"""  %s = {row} fusion(%p, %i), kind=kCustom, calls=%from
  ROOT %u = {stack} fusion(%p, %s, %i), kind=kCustom, calls=%to"""
    if started:
        copies = f"""  %a = (({stack}, s32[]), {row}, u32[]) fusion-start(%p, %i), kind=kCustom, calls=%from
  %s = {row} fusion-done(%a)
  %b = (({stack}, {row}, s32[]), {stack}, u32[]) fusion-start(%p, %s, %i), kind=kCustom, calls=%to
  ROOT %u = {stack} fusion-done(%b)"""
    cluster = replace(CLUSTER, device=replace(DEVICE, host_bandwidth_bytes_s=1e9))
    found = timeline(f"  %p = {stack} parameter(0)\n  %i = s32[] parameter(1)\n{copies}", fused, cluster=cluster)
    assert found.sent_s == {"from-host": pytest.approx(1.4e-5), "to-host": pytest.approx(1.4e-5)}
    assert found.exposed_s == found.sent_s
    assert not found.compute_s


def test_of_what_is_sliced_or_updated_in_place_the_slice_moves() -> None:
    fused = """
%fused (p0: f32[100,1000], i: s32[]) -> f32[1,1000] {
  %p0 = f32[100,1000] parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %s = f32[1,1000] dynamic-slice(%p0, %i, %z), dynamic_slice_sizes={1,1000}
}
%updated (p0: f32[100,1000], p1: f32[1,1000], i: s32[]) -> f32[100,1000] {
  %p0 = f32[100,1000] parameter(0)
  %p1 = f32[1,1000] parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %u = f32[100,1000] dynamic-update-slice(%p0, %p1, %i, %z)
}
"""
    sliced = (
        "  %p = f32[100,1000] parameter(0)\n  %i = s32[] parameter(1)\n"
        "  ROOT %f = f32[1,1000] fusion(%p, %i), kind=kLoop, calls=%fused"
    )
    assert timeline(sliced, fused).total_s == pytest.approx(1e-5 + (4000 + 4000 + 4) / 1e12)
    updated = (
        "  %p = f32[100,1000] parameter(0)\n  %q = f32[1,1000] parameter(1)\n  %i = s32[] parameter(2)\n"
        "  ROOT %f = f32[100,1000] fusion(%p, %q, %i), kind=kLoop, calls=%updated"
    )
    assert timeline(updated, fused).total_s == pytest.approx(1e-5 + (4000 + 4000 + 4) / 1e12)


GEMM = """
%gemm (x: f32[64,200], y: f32[200,64]) -> f32[64,64] {
  %x = f32[64,200] parameter(0)
  %y = f32[200,64] parameter(1)
  ROOT %d = f32[64,64] dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
OPERANDS = "  %p = f32[64,200] parameter(0)\n  %q = f32[200,64] parameter(1)\n"


@pytest.mark.parametrize(
    "product",
    [
        "f32[64,64] dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "f32[64,64] fusion(%p, %q), kind=kCustom, calls=%gemm",
        '(f32[64,64], s8[1024]) custom-call(%p, %q), custom_call_target="__cublas$gemm", backend_config='
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}',
    ],
)
def test_a_product_takes_what_its_shape_takes_however_xla_writes_it(product: str) -> None:
    found = timeline(f"{OPERANDS}  ROOT %d = {product}", GEMM)
    assert found.compute_s == {"product": pytest.approx(2e-3)}


def test_a_convolution_and_its_gradients_take_what_their_sums_are_long() -> None:
    # Ten pictures of 8 x 8, 64 features from 32, a window of 3 x 3: ten tiles of sums over 288 elements.
    labels = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    image, kernel, made = "f32[10,8,8,32]", "f32[3,3,32,64]", "f32[10,8,8,64]"

    def seconds(result: str, left: str, right: str, target: str) -> float:
        entry = (
            f"  %p = {left} parameter(0)\n  %q = {right} parameter(1)\n"
            f'  ROOT %c = ({result}, u8[8]) custom-call(%p, %q), {labels}, custom_call_target="{target}"'
        )
        return timeline(entry).total_s

    assert seconds(made, image, kernel, "__cudnn$convForward") == pytest.approx(10 * 2.88e-3)
    assert seconds(image, made, kernel, "__cudnn$convBackwardInput") == pytest.approx(10 * 2.88e-3)
    # Of the kernel's gradient sums are over positions: five rows of tiles of 640 elements.
    assert seconds(kernel, image, made, "__cudnn$convBackwardFilter") == pytest.approx(5 * 6.4e-3)


GATHER = (
    "  %p = f32[64,200] parameter(0)\n  %q = f32[200,64] parameter(1)\n  %r = f32[250000] parameter(2)\n"
    "  %s = (f32[250000], f32[1000000]) all-gather-start(%r), replica_groups={{0,1,2,3}}, dimensions={0}, "
    'use_global_device_ids=true, metadata={op_name="gather"}SYNC\n'
    "  %d = f32[64,64] dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  ROOT %g = f32[1000000] all-gather-done(%s)"
)


def test_computing_waits_for_what_it_does_not_hide() -> None:
    sent_s = group_seconds(CLUSTER, "all-gather", [[0, 1, 2, 3]], 4e6)
    assert sent_s == pytest.approx(3e-3)
    found = timeline(GATHER.replace("SYNC", ""))
    assert found.sent_s == {"all-gather": pytest.approx(3e-3)}
    assert found.exposed_s == {"all-gather": pytest.approx(1e-3)}
    assert found.exposed_by == {"gather": pytest.approx(1e-3)}
    assert found.total_s == pytest.approx(3e-3)
    # XLA may write two halves and wait all the same.
    kept = timeline(GATHER.replace("SYNC", ', backend_config={"collective_backend_config":{"is_sync":true}}'))
    assert kept.total_s == pytest.approx(5e-3)
    assert kept.exposed_s == {"all-gather": pytest.approx(3e-3)}


LOOP = """
%body (t: (s32[], f32[64,200], f32[200,64])) -> (s32[], f32[64,200], f32[200,64]) {
  %t = (s32[], f32[64,200], f32[200,64]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[64,200] get-tuple-element(%t), index=1
  %y = f32[200,64] get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %d = f32[64,64] dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %r = f32[64,64] all-reduce(%d), replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add
  ROOT %u = (s32[], f32[64,200], f32[200,64]) tuple(%n, %x, %y)
}
%cond (t: (s32[], f32[64,200], f32[200,64])) -> pred[] {
  %t = (s32[], f32[64,200], f32[200,64]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %k = s32[] constant(7)
  ROOT %c = pred[] compare(%i, %k), direction=LT
}
"""


def test_a_loop_takes_its_first_iteration_times_its_trips() -> None:
    entry = (
        f"{OPERANDS}  %z = s32[] constant(0)\n"
        "  %t = (s32[], f32[64,200], f32[200,64]) tuple(%z, %p, %q)\n"
        "  ROOT %w = (s32[], f32[64,200], f32[200,64]) while(%t), condition=%cond, body=%body"
    )
    reduce_s = group_seconds(CLUSTER, "all-reduce", [[0, 1], [2, 3]], 4 * 64 * 64)
    once_s = 2e-3 + reduce_s + 1e-5 + 12 / 1e12  # and the counter
    found = timeline(entry, ADD, LOOP)
    assert found.total_s == pytest.approx(7 * once_s)
    assert found.exposed_s == {"all-reduce": pytest.approx(7 * reduce_s)}
    assert (found.kernels, found.unknown_loops) == (14, 0)
    assert [e.executions for e in found.events if e.kind == "product"] == [7]
    (loop,) = (e for e in found.events if e.kind == "loop")
    assert (loop.start_s, loop.seconds, loop.depth) == (0.0, pytest.approx(7 * once_s), 0)
    unknown = timeline(entry, ADD, LOOP.replace("constant(7)", "parameter(1)"))
    assert (unknown.unknown_loops, unknown.total_s) == (1, pytest.approx(once_s))


def test_fused_attention_has_the_rate_of_its_kind() -> None:
    entry = (
        "  %q = bf16[2,1024,4,128] parameter(0)\n  %k = bf16[2,1024,4,128] parameter(1)\n"
        "  ROOT %a = (bf16[2,4,1024,128], f32[2,4,1024], u8[0]) custom-call(%q, %k, %k), "
        'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":{'
        '"intermediate_tensor_shape":{"dimensions":["2","4","1024","1024"]},'
        '"bmm1_dot_dimension_numbers":{"lhs_batch_dimensions":["0","2"]}}}'
    )
    cluster = replace(CLUSTER, efficiency=Efficiency(attention=0.5))
    # Scores, and their product with values.
    flops = 4 * 2 * 4 * 1024 * 1024 * 128
    assert timeline(entry, cluster=cluster).compute_s == {"kernel": pytest.approx(1e-5 + flops / 0.5e12)}
    # The device's own, where it has them: by flops, by scores, and by the queries of all heads.
    rates = KernelRates(1, 1e-5, attention={"forward": AttentionRates(1e-12, 1e-9, 1e-6)})
    device = replace(DEVICE, kernels=rates, peak_flops={"f32": 1e12, "bf16": 1e12})
    own_s = flops * 1e-12 + 2 * 4 * 1024 * 1024 * 1e-9 + 2 * 4 * 1024 * 1e-6
    found = timeline(entry, cluster=replace(cluster, device=device))
    assert found.compute_s == {"kernel": pytest.approx(1e-5 + own_s)}


def test_a_trace_has_a_row_for_each_stream() -> None:
    trace = json.loads(timeline(GATHER.replace("SYNC", "")).trace())
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    drawn = {(rows[e["tid"]], e["name"]): e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert set(drawn) == {("compute", "d"), ("send", "s")}
    assert drawn["send", "s"]["dur"] == pytest.approx(3000)
    assert drawn["send", "s"]["args"] == {"source": "gather", "executions": 1}


def test_a_cluster_that_is_too_small_is_refused() -> None:
    with pytest.raises(RhinoError, match="is for 4 devices and lab:1 has 2") as refused:
        timeline("  ROOT %p = f32[64] parameter(0)", cluster=replace(CLUSTER, devices_per_host=2))
    assert "planned for" in refused.value.remedy


def test_which_collectives_of_a_loop_are_between_its_products() -> None:
    """Of a trip's sums the second is between two dots, and the third between the last and the next trip's first."""
    sums = "replica_groups={{0,1,2,3}}, to_apply=%add"
    body = f"""
%body (s: (s32[], f32[100,100], f32[64], f32[100,100])) -> (s32[], f32[100,100], f32[64], f32[100,100]) {{
  %s = (s32[], f32[100,100], f32[64], f32[100,100]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[100,100] get-tuple-element(%s), index=1
  %g = f32[64] get-tuple-element(%s), index=2
  %late = f32[64] all-reduce-start(%g), {sums}
  %dot.1 = f32[100,100] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %late.done = f32[64] all-reduce-done(%late)
  %between = f32[100,100] all-reduce-start(%dot.1), {sums}
  %between.done = f32[100,100] all-reduce-done(%between)
  %dot.2 = f32[100,100] dot(%between.done, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %behind = f32[100,100] all-reduce-start(%dot.2), {sums}
  %behind.done = f32[100,100] all-reduce-done(%behind)
  %kept = f32[100,100] all-reduce-start(%dot.2), {sums}
  %kept.done = f32[100,100] all-reduce-done(%kept)
  ROOT %t = (s32[], f32[100,100], f32[64], f32[100,100]) tuple(%i, %behind.done, %late.done, %kept.done)
}}
%more (s: (s32[], f32[100,100], f32[64], f32[100,100])) -> pred[] {{
  %s = (s32[], f32[100,100], f32[64], f32[100,100]) parameter(0)
  ROOT %true = pred[] constant(true)
}}
"""
    entry = """  %p = (s32[], f32[100,100], f32[64], f32[100,100]) parameter(0)
  ROOT %w = (s32[], f32[100,100], f32[64], f32[100,100]) while(%p), condition=%more, body=%body"""
    found = timeline(entry, ADD, body)
    seconds = {event.name: event.seconds for event in found.events}
    assert seconds["kept"] > 10 * seconds["late"] > 0
    assert found.awaited == {"behind": seconds["kept"], "between": seconds["kept"]}
    assert "awaited" not in found.to_json()
