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
from rhino.ir.pipeline import read_program
from rhino.passes.stage.edge_messages import read_messages
from rhino.pipeline.schedule import PipelineCosts, make_schedule
from rhino.runtime import build
from rhino.runtime.edges import ArrayExchange

WORKER = Path(__file__).parent / "edited_worker.py"
COSTS = PipelineCosts.uniform(2, 1.0, 2.0, weight_s=1.0)


def sent(text: str) -> tuple[tuple[int, ...], set[float]]:
    """The ports of the forward edge, and what arrives where device d of the first stage has 1 + d everywhere."""
    module = parse_text(text, make_context())
    messages = read_messages(module, read_program(module))[edited_text.EDGE]
    devices = jax.devices()
    ends = [NamedSharding(Mesh(np.array(group), ("x",)), PartitionSpec()) for group in (devices[:2], devices[2:4])]
    senders = [[device for device, _ in each] for each in messages.senders]
    aval = jax.ShapeDtypeStruct((4, 32), np.float32)
    edge = ArrayExchange(ends[:1], ends[1:], [aval], messages.program, messages.host_of, senders)
    pieces = [jax.device_put(np.full(aval.shape, 1 + d, np.float32), devices[d]) for d in range(2)]
    (made,) = edge([jax.make_array_from_single_device_arrays(aval.shape, ends[0], pieces)])
    return edge.way, {float(value) for shard in made.addressable_shards for value in np.unique(np.asarray(shard.data))}


def test_another_host_sends_where_the_text_is_changed() -> None:
    text = edited_text.lowered([0, 1, 2, 3])
    assert sent(text) == ((0, 2, 3), {1.0})
    assert sent(edited_text.other_sender(text)) == ((1, 2, 3), {2.0})


def test_another_device_of_a_host_sends_where_the_text_is_changed() -> None:
    text = edited_text.lowered([0, 0, 1, 1])
    assert sent(text)[1] == {1.0}
    assert sent(edited_text.other_sender(text, host=False))[1] == {2.0}


@pytest.mark.parametrize("hosts", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_a_module_for_several_hosts_runs_in_one_process_and_says_so(hosts: list[int]) -> None:
    module = parse_text(edited_text.lowered(hosts), make_context())
    assert "sender" in str(module)
    pipeline = build(module, schedule=make_schedule("1f1b", COSTS, 4))
    for value, wanted in zip(
        pipeline.run(two_stages.arguments()), two_stages.step(*two_stages.arguments()), strict=True
    ):
        np.testing.assert_allclose(np.asarray(value), wanted, rtol=1e-5, atol=1e-6)
    assert "sender" not in str(module)
    assert "hosts = [[0, 1, 2, 3]]" in str(module)


def test_a_tampered_module_is_not_compiled() -> None:
    text = edited_text.lowered([0, 1, 2, 3]).replace("[[[0, 2, 0, 0, 512", "[[[0, 2, 0, 0, 508")
    with pytest.raises(
        RhinoError, match=r"edge 'forward 0 -> 1': .* does not have byte 508 then|has no byte 508 of it"
    ):
        build(text, schedule=make_schedule("1f1b", COSTS, 4))


def test_processes_send_what_the_text_says() -> None:
    outputs = processes.run(WORKER, 4, devices=1)
    for output in outputs:
        assert "planned: ports 0 2 3, text kept, right" in output
        assert "edited: ports 1 2 3, text kept, right" in output
