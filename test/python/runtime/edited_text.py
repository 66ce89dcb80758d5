"""The two stages with all that they send in the text, and the text with other senders, as by hand.

Used by the tests of one process, with hosts that are made up, and by the worker of several processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import two_stages

from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.program import read_program
from rhino.ir.pipeline.transfers import lower_transfers
from rhino.reshard.data import Network

# What goes from the first stage's devices 0 and 1, or the second's 2 and 3: a transfer, the batch, the loss.
EDGES = {"forward 0 -> 1": (0, 1), "argument 3": (0, 1), "results 1": (2, 3)}


def lowered(hosts: Sequence[int]) -> str:
    """Stages of two devices each, with whole values; the device at each position is on the host of that number."""
    module = parse_text(two_stages.text(ways=2, whole=True, shared=True), make_context())

    def network(devices: Sequence[int]) -> Network:
        host_of = {device: hosts[device] for device in devices}
        return Network(host_of, dict.fromkeys(sorted(set(hosts)), Fraction(10**9)), Fraction(1, 10**5))

    lower_transfers(module, read_program(module), network, "broadcast", "naive")
    return str(module)


def other_sender(text: str, *edges: str, host: bool = True) -> str:
    """The second device sends in the place of the first; the messages are then of its host, if that is its own.

    Raises:
      AssertionError: the text does not say that the first one sends.
    """
    for edge in edges or EDGES:
        first, second = EDGES[edge]
        start = text.index(f'edge = "{edge}"')
        edits = [(f"sender = {first} : i64", f"sender = {second} : i64")]
        if host:
            edits.append((f"steps = [[[{first}, ", f"steps = [[[{second}, "))
        stop = text.find("rhino.multicast", start)
        said = text[start:stop]
        for old, new in edits:
            assert said.count(old) == 1, said
            said = said.replace(old, new)
        text = text[:start] + said + text[stop:]
    return text
