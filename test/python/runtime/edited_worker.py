"""One process of four, two for each of two stages: runs a module as it was planned, and with other senders by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("NPROC", "16")  # threads of XLA's CPU client, of which some wait for other processes
sys.path.insert(0, str(Path(__file__).parent))

import edited_text
import jax
import numpy as np
import two_stages

from rhino.dialect.context import make_context, parse_text
from rhino.pipeline.schedule import PipelineCosts, make_schedule
from rhino.runtime import build

COSTS = PipelineCosts.uniform(2, 1.0, 2.0, weight_s=1.0)


def run(name: str, text: str) -> None:
    """A step on what it keeps, and through which devices a transfer, the batch and the loss went."""
    module = parse_text(text, make_context())
    before = str(module)
    pipeline = build(module, jax.devices(), schedule=make_schedule("1f1b", COSTS, 4))
    *wanted, loss = two_stages.step(*two_stages.arguments(), shared=True)
    for given in (two_stages.arguments(), pipeline.place(two_stages.arguments())):
        *weights, out = pipeline.run(given)
        np.testing.assert_allclose(np.asarray(out), loss, rtol=1e-5)
        for found, expected in zip(weights, wanted, strict=True):
            for shard in found.addressable_shards:
                np.testing.assert_allclose(np.asarray(shard.data), expected[shard.index], rtol=1e-5, atol=1e-6)
    process = {device.id: device.process_index for device in jax.devices()}
    edges = pipeline._crossing._edges
    ports = "; ".join(" ".join(str(process[port]) for port in edges[edge].way) for edge in edited_text.EDGES)
    kept = "kept" if str(module) == before else "changed"
    print(f"{name}: ports {ports}, text {kept}, right", flush=True)


def main() -> None:
    """Arguments: address, processes, number."""
    jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    text = edited_text.lowered([0, 1, 2, 3])
    run("planned", text)
    run("edited", edited_text.other_sender(text))


if __name__ == "__main__":
    main()
