"""All named behaviours of XLA, and their names in comments: `XLA: sums-merge`.

Owns the order of the catalogue, and the page that tells it.
"""

from __future__ import annotations

from rhino.errors import RhinoError, nearest
from rhino.xla.behaviour import TRIED, Behaviour
from rhino.xla.beside import BESIDE
from rhino.xla.collectives import COLLECTIVES
from rhino.xla.faults import FAULTS
from rhino.xla.kernels import KERNELS
from rhino.xla.layouts import LAYOUTS
from rhino.xla.memory import MEMORY
from rhino.xla.rows import ROWS

PARTS = {
    "Collectives": (*COLLECTIVES, *BESIDE, *LAYOUTS),
    "Kernels": (*KERNELS, *ROWS),
    "Memory and types": MEMORY,
    "What Rhino keeps programs away from": FAULTS,
}
CATALOGUE = tuple(found for part in PARTS.values() for found in part)


def behaviour(name: str) -> Behaviour:
    """The behaviour of a name, or RhinoError with the one that was meant."""
    for found in CATALOGUE:
        if found.name == name:
            return found
    near = nearest(name, [found.name for found in CATALOGUE])
    raise RhinoError(
        f"no behaviour of XLA is named {name!r}", f"did you mean {near}?" if near else "see rhino xla --list"
    )


def page() -> str:
    """The catalogue as Markdown, below a page's first heading."""
    parts = [
        "What XLA does that Rhino's plans, predictions and rewrites rest on. Comments name it where it matters: "
        "`XLA: sums-merge`. `rhino xla` compiles a small program for each, and says which changed. All were tried with "
        f"jaxlib {' and '.join(TRIED)}.",
    ]
    for title, part in PARTS.items():
        parts += [f"## {title}", *(_section(found) for found in part)]
    return "\n\n".join(parts) + "\n"


def _section(found: Behaviour) -> str:
    lines = [f"### {found.name}", "", found.says, ""]
    if found.source:
        lines.append(f"- In XLA: {found.source}.")
    if found.probe is None:
        lines.append(f"- Not probed. {found.unprobed}")
        return "\n".join(lines)
    where = [target for target in found.where if found.holds(target)]
    other = [target for target in found.where if target not in where]
    lines.append(f"- So on: {', '.join(where)}." + (f" Not on: {', '.join(other)}." if other else ""))
    lines.append(
        f"- Seen with jaxlib {' and '.join(found.seen)}." + (f" No more from {found.until} on." if found.until else "")
    )
    return "\n".join(lines)
