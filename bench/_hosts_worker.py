"""One process of `bench.cpu_hosts`: the devices of one host, on which every plan of a model is compiled and run.

Owns what a host does when told: calibrate with the others, compile, one step. Plans are files that `bench._hosts_plans`
made. Knows nothing of rounds.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench._crew import serve
from bench._mesh_model import QUICK, Made, Running, Size, begin, by_kind, compiled, make

DEVICES = 2  # of a host

# Models whose communication, at 200 Mbit/s, is some times their computing on a quarter of two cores.
SIZES: dict[str, Size] = {
    "gpt": Size("tiny", 32, {"layers": 2, "width": 256, "heads": 8, "vocab": 2048, "seq_len": 64}),
    "moe": Size("tiny", 32, {"width": 128, "heads": 8, "experts": 8, "group": 256, "vocab": 1024, "seq_len": 64}),
    "dlrm": Size("tiny", 2048, {"table_rows": (20000, 8192, 2048, 512, 40, 3), "bottom": (64, 32), "top": (128, 64)}),
    "unet": Size("tiny", 16, {"width": 32}),
}
_QUICK: dict[str, Size] = {**QUICK, "dlrm": Size("tiny", 64, {})}


def made(model: str, quick: bool) -> Made:
    """A model of the bench at its size."""
    return make(model, (_QUICK if quick else SIZES)[model])


class Worker:
    """A host's part in all plans of a model."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        import jax

        import rhino.distributed

        jax.config.update("jax_num_cpu_devices", DEVICES)
        rhino.distributed.initialize(first["coordinator"], first["count"], first["index"])
        self._is_first = first["index"] == 0
        self._folder = Path(first["folder"])
        self._made: Made | None = None
        if first["model"]:
            self._made = made(first["model"], first["quick"])
        self._steps: dict[str, Any] = {}
        self._running: dict[str, Running] = {}

    def calibrate(self, path: str) -> Mapping[str, Any]:
        """The cluster of all hosts, as `rhino cluster calibrate` measures and writes it."""
        from rhino.machine.calibrate import calibrate

        measured = calibrate("namespaces")
        if self._is_first:
            measured.save(path)
        return {}

    def compile(self, name: str, cluster: str) -> Mapping[str, Any]:
        """Compile a plan, which is a file; which program it is, and what that sends."""
        from rhino import Cluster
        from rhino.api.plan import Plan
        from rhino.compile.collectives import read_collectives

        assert self._made is not None
        plan = Plan.load(self._folder / f"{name}.json")
        self._steps[name], text = compiled(self._made, Cluster.load(cluster), plan)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"digest": digest, "xla_comm_bytes": by_kind(read_collectives(text))}

    def begin(self, name: str) -> Mapping[str, Any]:
        """Start training with a plan that is compiled."""
        assert self._made is not None
        self._running[name] = begin(self._made, self._steps[name])
        return {}

    def step(self, name: str) -> Mapping[str, Any]:
        """One step from where the last one ended; the clock is the machine's, the same for all processes."""
        assert self._made is not None
        start = time.monotonic()
        self._running[name].advance(self._made.batch)
        return {"start": start, "end": time.monotonic(), "losses": self._running[name].losses}


if __name__ == "__main__":
    serve(Worker)
