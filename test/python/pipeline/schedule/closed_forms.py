"""What is known of a chain of equal stages without simulating it: steady time per micro-batch, micro-batches in flight.

Owns the formulas of arXiv 2211.05322 (section 4, overlapping-friendly schedule: eager-1F1B) and of 1F1B under
asynchronous transfers. The simulator is judged by them.
"""

from __future__ import annotations

from rhino.errors import RhinoError


def steady_time_s(name: str, stages: int, forward_s: float, backward_s: float, transfer_s: float) -> float:
    """Seconds per micro-batch in steady state: n equal stages, one-way transfer c on a link per direction.

    1f1b: f + b + 2c(n-1)/n. The cycle through all stages holds n of f + b and 2(n-1) transfers, and n micro-batches.
    eager-1f1b: f + b while c <= (f+b)/2, else the largest over 1 <= p <= n-1 of ((p+1)(f+b) + 2pc) / (2p+1): the cycle
    over p edges has 2p + 1 micro-batches, because in-flight counts differ by 2 per edge.
    gpipe: the slower of f + b, when a transfer takes no longer than a task; else the links take 2c in all.
    """
    work = forward_s + backward_s
    if name == "1f1b":
        return work + 2 * transfer_s * (stages - 1) / stages
    if name == "eager-1f1b":
        if stages == 1 or transfer_s <= work / 2:
            return work
        return max(((p + 1) * work + 2 * p * transfer_s) / (2 * p + 1) for p in range(1, stages))
    if name == "gpipe":
        return work if stages == 1 else max(forward_s, transfer_s) + max(backward_s, transfer_s)
    raise RhinoError(f"no closed form is known for {name}", "simulate it")


def in_flight(name: str, stages: int, stage: int, microbatches: int, k: int = 1) -> int:
    """Most micro-batches whose activations a stage of a chain holds at once."""
    after = stages - stage
    counts = {"gpipe": microbatches, "1f1b": after, "eager-1f1b": 2 * after - 1, "kfkb": k * after}
    if name not in counts:
        raise RhinoError(f"no closed form is known for {name}", "simulate it")
    return min(microbatches, counts[name])
