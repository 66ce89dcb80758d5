"""What the text of a module says of messages is what is sent: a sender that is changed by hand is who sends."""

from __future__ import annotations

from pathlib import Path

import edited_text
import jax
import numpy as np
import processes
import pytest
import two_stages
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.ir.pipeline.messages import read_messages
from rhino.ir.pipeline.program import read_program
from rhino.pipeline.schedule import PipelineCosts, make_schedule
from rhino.runtime import build
from rhino.runtime.edges import ArrayExchange

WORKER = Path(__file__).parent / "edited_worker.py"
COSTS = PipelineCosts.uniform(2, 1.0, 2.0, weight_s=1.0)


SHAPES = {"forward 0 -> 1": (4, 32), "argument 3": (16, 8), "results 1": ()}


def sent(text: str, name: str) -> tuple[tuple[int, ...], set[float]]:
    """The ports of an edge, and what arrives elsewhere where device d of its first end has 1 + d everywhere."""
    module = parse_text(text, make_context())
    messages = read_messages(module, read_program(module))[name]
    devices, here = jax.devices(), edited_text.EDGES[name]
    there = [device for k, device in enumerate(devices[:4]) if name == "results 1" or k not in here]
    groups = [[devices[k] for k in here], there]
    ends = [NamedSharding(Mesh(np.array(group), ("x",)), PartitionSpec()) for group in groups]
    senders = [[device for device, _ in each] for each in messages.senders]
    aval = jax.ShapeDtypeStruct(SHAPES[name], np.float32)
    edge = ArrayExchange(ends[:1], ends[1:], [aval], messages.program, messages.host_of, senders)
    pieces = [jax.device_put(np.full(aval.shape, 1 + d, np.float32), devices[d]) for d in here]
    (made,) = edge([jax.make_array_from_single_device_arrays(aval.shape, ends[0], pieces)])
    arrived = [shard.data for shard in made.addressable_shards if shard.device not in groups[0]]
    return edge.way, {float(value) for data in arrived for value in np.unique(np.asarray(data))}


PLANNED = {"forward 0 -> 1": (0, 2, 3), "argument 3": (0, 2, 3), "results 1": (2, 0, 1)}
EDITED = {"forward 0 -> 1": (1, 2, 3), "argument 3": (1, 2, 3), "results 1": (3, 0, 1)}


@pytest.mark.parametrize("edge", edited_text.EDGES)
def test_another_host_sends_where_the_text_is_changed(edge: str) -> None:
    text, (first, second) = edited_text.lowered([0, 1, 2, 3]), edited_text.EDGES[edge]
    assert sent(text, edge) == (PLANNED[edge], {1.0 + first})
    assert sent(edited_text.other_sender(text, edge), edge) == (EDITED[edge], {1.0 + second})


@pytest.mark.parametrize("edge", edited_text.EDGES)
def test_another_device_of_a_host_sends_where_the_text_is_changed(edge: str) -> None:
    text, (first, second) = edited_text.lowered([0, 0, 1, 1]), edited_text.EDGES[edge]
    assert sent(text, edge)[1] == {1.0 + first}
    assert sent(edited_text.other_sender(text, edge, host=False), edge)[1] == {1.0 + second}


@pytest.mark.parametrize("hosts", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_a_module_for_several_hosts_runs_in_one_process_and_says_so(hosts: list[int]) -> None:
    module = parse_text(edited_text.lowered(hosts), make_context())
    assert "sender" in str(module)
    pipeline = build(module, schedule=make_schedule("1f1b", COSTS, 4))
    for value, wanted in zip(
        pipeline.run(two_stages.arguments()), two_stages.step(*two_stages.arguments(), shared=True), strict=True
    ):
        np.testing.assert_allclose(np.asarray(value), wanted, rtol=1e-5, atol=1e-6)
    assert "sender" not in str(module)
    assert "hosts = [[0, 1, 2, 3]]" in str(module)
    assert "argument 3" not in str(module) and "results 1" not in str(module)


def test_a_tampered_module_is_not_compiled() -> None:
    text = edited_text.lowered([0, 1, 2, 3]).replace("[[[0, 2, 0, 0, 512", "[[[0, 2, 0, 0, 508")
    with pytest.raises(
        RhinoError, match=r"edge 'forward 0 -> 1': .* does not have byte 508 then|has no byte 508 of it"
    ):
        build(text, schedule=make_schedule("1f1b", COSTS, 4))


def test_processes_send_what_the_text_says() -> None:
    outputs = processes.run(WORKER, 4, devices=1, forked=True)
    for output in outputs:
        for name, ways in (("planned", PLANNED), ("edited", EDITED)):
            ports = "; ".join(" ".join(map(str, ways[edge])) for edge in edited_text.EDGES)
            assert f"{name}: ports {ports}, text kept, right" in output
