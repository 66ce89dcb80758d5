"""How fast rhino-opt starts, and how fast it reads and prints a module without doing anything to it.

    python -m bench.startup [--rounds N] [--quick] [--json FILE|-]

Baselines: an empty Python process, `import jax`, and jaxlib's own parser and printer on the same file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from bench._common import CACHE, Table, interleave, main, note, parser, publish, run, spread, tool
from bench._inputs import GPT, module

_BARE_ROUND_TRIP = """
import sys
from rhino.dialect.context import make_context
from jaxlib.mlir import ir
with make_context():
    text = str(ir.Module.parseFile(sys.argv[1]))
open(sys.argv[2], "w").write(text)
"""


def body() -> None:
    """Measure and print."""
    p = parser("bench.startup", __doc__)
    p.add_argument("--rounds", type=int, help="how often each command runs (default: 15; 3 with --quick)")
    args = p.parse_args()
    rounds = args.rounds or (3 if args.quick else 15)

    big = module(GPT("125m", 8) if args.quick else GPT("2.6b", 64))
    empty = CACHE / "empty.mlir"
    empty.write_text("module {\n}\n", encoding="utf-8")
    out = CACHE / "startup-out.mlir"
    size = f"{big.stat().st_size / 1e6:.1f} MB"
    opt = tool("rhino-opt")
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import jax'": [sys.executable, "-c", "import jax"],
        "rhino-opt --help": [*opt, "--help"],
        "rhino-opt, empty module": [*opt, empty, "-o", out],
        f"rhino-opt, no passes, {size}": [*opt, big, "-o", out],
        f"jaxlib parse + print, {size}": [sys.executable, "-c", _BARE_ROUND_TRIP, big, out],
    }

    cpu_s: dict[str, list[float]] = {name: [] for name in commands}

    def timed(name: str) -> Callable[[], float]:
        def once() -> float:
            ran = run(commands[name])
            cpu_s[name].append(ran.cpu_s)
            return ran.wall_s

        return once

    for command in commands.values():
        run(command)  # fills the file cache, and fails early
    times = interleave({name: timed(name) for name in commands}, rounds, note)
    peaks = {name: run(command).peak_rss_bytes for name, command in commands.items()}
    results = {
        "module_bytes": big.stat().st_size,
        "commands": [
            {
                "name": name,
                "wall_s": spread(samples),
                "cpu_s": spread(cpu_s[name]),
                "peak_rss_bytes": peaks[name],
            }
            for name, samples in times.items()
        ],
    }
    rows = tuple(
        (
            name,
            f"{spread(samples)['median']:.3f}",
            f"{min(samples):.3f}",
            f"{max(samples):.3f}",
            f"{spread(cpu_s[name])['median']:.3f}",
            f"{peaks[name] / 2**20:.0f}",
        )
        for name, samples in times.items()
    )
    columns = ("command", "median s", "min s", "max s", "CPU s", "peak MiB")
    table = Table(f"Start-up, {rounds} interleaved rounds", columns, rows)
    publish("startup", args, results, [table])


if __name__ == "__main__":
    main(body)
