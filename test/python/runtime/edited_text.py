"""The two stages with their transfers' messages in the text, and the text with another sender, as by hand.

Used by the tests of one process, with hosts that are made up, and by the worker of several processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import two_stages

from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline import read_program
from rhino.passes.stage.lower_transfers import lower_transfers
from rhino.reshard import Network

EDGE = "forward 0 -> 1"


def lowered(hosts: Sequence[int]) -> str:
    """Stages of two devices each, with whole values; the device at each position is on the host of that number."""
    module = parse_text(two_stages.text(ways=2, whole=True), make_context())

    def network(devices: Sequence[int]) -> Network:
        host_of = {device: hosts[device] for device in devices}
        return Network(host_of, dict.fromkeys(sorted(set(hosts)), Fraction(10**9)), Fraction(1, 10**5))

    lower_transfers(module, read_program(module), network, "broadcast", "naive")
    return str(module)


def other_sender(text: str, *, host: bool = True) -> str:
    """In the forward edge device 1 sends in the place of device 0; the message is then of its host, if that is its own.

    Raises:
      AssertionError: the text does not say that device 0 sends.
    """
    lines = text.splitlines()
    (at,) = (number for number, line in enumerate(lines) if f'edge = "{EDGE}"' in line)
    edits = [("sender = 0 : i64", "sender = 1 : i64")]
    if host:
        edits.append(("steps = [[[0, 2, ", "steps = [[[1, 2, "))
    for old, new in edits:
        assert lines[at].count(old) == 1, lines[at]
        lines[at] = lines[at].replace(old, new)
    return "\n".join(lines)
