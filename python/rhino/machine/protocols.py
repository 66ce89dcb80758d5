"""How a level of links carries a collective: a line of seconds over bytes for each of NCCL's algorithms and protocols.

Owns what such a line is made of, and its terms by kind and group size. Knows no cluster: loads come from `links`.
"""

from __future__ import annotations

from math import inf

from rhino.program.operations import COLLECTIVES
from rhino.schema.kinds import Float, String
from rhino.schema.records import described, told

Line = tuple[float, float]  # (seconds, seconds per byte of the full tensor)


def check_kind(kind: str) -> None:
    """ValueError for a kind of collective that is none."""
    if kind not in COLLECTIVES:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(COLLECTIVES)}")


def ring_bytes(kind: str, n: int, nbytes_full: float) -> float:
    """Bytes each device of a group of `n` sends under ring formulas, for a full tensor of `nbytes_full` bytes.

    all-gather, reduce-scatter V(n-1)/n; all-reduce 2V(n-1)/n; all-to-all V(n-1)/n^2; for a collective-permute V is
    its operand, sent whole. A group of one sends nothing. ValueError for an unknown kind.
    """
    check_kind(kind)
    if n <= 1:
        return 0.0
    if kind == "collective-permute":
        return float(nbytes_full)
    shares = {"all-reduce": 2 * (n - 1) / n, "all-to-all": (n - 1) / n**2}
    return nbytes_full * shares.get(kind, (n - 1) / n)


def own_bytes(kind: str, n: int, nbytes_full: float) -> float:
    """Bytes that a device of a group of `n` has itself of what it ends up with, and may have to copy."""
    check_kind(kind)
    if n <= 1 or kind == "collective-permute":
        return 0.0
    return nbytes_full / (n**2 if kind == "all-to-all" else n)


def rounds(kind: str, n: int) -> int:
    """Steps of a ring of `n`, one after the other: n-1, twice that in an all-reduce; of a collective-permute one."""
    return {"all-reduce": 2 * (n - 1), "collective-permute": 1}.get(kind, n - 1)


@described
class Protocol:
    """One way of NCCL to do a collective: `launch_s + hop_s * rounds + sent / (share * B) + own / (own_share * B)`.

    B is the level's bandwidth, `rounds`, `sent` and `own` are of this module. Of several the fastest counts.
    """

    # A tree, of an all-reduce alone, passes 2 ceil(log2 m) of the level's links; each carries V up and V down.
    algorithm: str = told(String(("ring", "tree")), "ring, or tree for NCCL's double binary tree", default="ring")
    launch_s: float = told(Float(0), "the seconds before its first byte moves", default=0.0)
    hop_s: float = told(Float(0), "the seconds of a step over a link of the level", default=0.0)
    inner_hop_s: float | None = told(
        Float(0), "the seconds of a step over a link of a level below, by default that level's latency", default=None
    )
    share: float = told(Float(above=0), "the part of the level's bandwidth that what is sent gets", default=1.0)
    # Of fitted ones: in-place collectives leave it where it is, others copy it, a switch that adds takes it, too.
    own_share: float | None = told(
        Float(above=0), "the same for what a device has itself already; free by default", default=None
    )
    most_bytes_s: float | None = told(
        Float(above=0), "the most that a device sends a second whatever the links", default=None
    )

    def sends(self, kind: str, n: int, seconds_per_byte: float, own_seconds_per_byte: float) -> float:
        """Seconds per byte of the full tensor, of what is sent and what stays.

        Args:
          seconds_per_byte: of a byte that a device sends, at the full bandwidth of the busiest link.
          own_seconds_per_byte: of one at the level's bandwidth, for what stays.
        """
        sent = ring_bytes(kind, n, 1) * max(seconds_per_byte / self.share, 1 / (self.most_bytes_s or inf))
        own = own_bytes(kind, n, 1) * own_seconds_per_byte / self.own_share if self.own_share else 0.0
        return sent + own
