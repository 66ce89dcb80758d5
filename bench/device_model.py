"""How far the model of a device is from what was measured on it, on rows that its parameters have not seen.

    python -m bench.device_model [--only PART ...] [--json FILE|-]

The tables lie in bench/data; no device is needed. Baseline of the same run: datasheets and textbook formulas.
"""

from __future__ import annotations

from types import ModuleType

from bench import _device_collectives, _device_products, _device_steps
from bench._common import BenchError, main, note, parser, publish

# Each part has judge(), table() of what that finds, and a record() of each of them.
PARTS: dict[str, ModuleType] = {
    "products": _device_products,
    "collectives": _device_collectives,
    "steps": _device_steps,
}


def body() -> None:
    """Judge the parts that were asked for."""
    p = parser("bench.device_model", __doc__)
    p.add_argument("--only", nargs="+", metavar="PART", help=f"parts: {', '.join(PARTS)}; default all")
    args = p.parse_args()
    if unknown := [name for name in args.only or () if name not in PARTS]:
        raise BenchError(f"no part is called {' or '.join(unknown)}; there are {', '.join(PARTS)}")
    results, tables = {}, []
    for name in args.only or PARTS:
        note(f"{name}: fitting")
        found = PARTS[name].judge()
        results[name] = [it.record() for it in found]
        tables.append(PARTS[name].table(found))
    publish("device_model", args, results, tables)


if __name__ == "__main__":
    main(body)
