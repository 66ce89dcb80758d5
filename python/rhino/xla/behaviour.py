"""A behaviour of XLA as a record, and the small programs that show it.

Owns the records' form and how a probe's program is written. Must not know: jax, MLIR. What compiles is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rhino.xla.backends import back_end

# Versions of jaxlib that all probes were run with, the oldest first.
TRIED = ("0.10.2", "0.12.0.1")


class Compiled(Protocol):
    """What XLA made of a probe's program, as a probe sees it: `rhino.compile.Executable`."""

    def hlo_text(self) -> str: ...
    def collectives(self) -> Sequence[Any]: ...
    def memory_analysis(self) -> Any: ...
    def __call__(self, *arguments: Any) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class Probe:
    """A program and what to look at.

    Attributes:
      text: StableHLO as XLA is given it: nothing of Rhino's own changes it.
      shows: whether the behaviour shows in what XLA made of it.
      options: XLA's, over those that Rhino gives.
      refused: the behaviour is that XLA refuses the program with this in its message.
      fatal: the behaviour is that the process ends, or that XLA refuses so: a process of its own compiles it.
    """

    text: str
    shows: Callable[[Compiled], bool] = bool
    options: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One thing that XLA does and Rhino counts on, or works around.

    Attributes:
      name: in kebab-case; comments say `XLA: name` where something rests on it.
      says: what XLA does, in a sentence.
      source: the pass or file of XLA, where known.
      since: the first version of jaxlib it was so with; empty if it was with all.
      until: the first version of jaxlib it was no longer so with; empty while it is.
      probe: what shows it; None where nothing can, see `unprobed`.
      field: the field of `BackEnd` that says on which back ends it is so; empty where planning does not ask.
      not_on: probed targets on which it is not so, though nothing in planning asks.
      where: the targets that are probed.
      unprobed: why there is no probe.
    """

    name: str
    says: str
    source: str = ""
    probe: Probe | None = None
    field: str = ""
    where: tuple[str, ...] = ("cpu", "h100")
    unprobed: str = ""
    not_on: tuple[str, ...] = ()
    since: str = ""
    until: str = ""

    @property
    def seen(self) -> tuple[str, ...]:
        """Versions of jaxlib that its probe showed it with."""
        return tuple(v for v in TRIED if self.probe is not None and self._is_in(v))

    def holds(self, target: str, version: str = "") -> bool:
        """Whether it is said to be so on a target, with a version of jaxlib; with some version by default."""
        said = bool(getattr(back_end(target), self.field)) if self.field else target not in self.not_on
        return said and (not version or self._is_in(version))

    def _is_in(self, version: str) -> bool:
        begun = not self.since or _numbers(version) >= _numbers(self.since)
        return begun and not (self.until and _numbers(version) >= _numbers(self.until))


def program(arguments: str, body: str, mesh: str = "x=8") -> str:
    """A module with one function: shardings are `@[x, -, y+z]`, per dimension its axes or none.

    Args:
      arguments: `%a: tensor<8x4xf32> @[x, -]`, comma-separated, then `->` and the results' types alike.
        `!` behind a sharding: what is written may take the argument's place as the first result.
      body: all of the function but the end of its signature. `value @[..] : type` constrains.
      mesh: axes and sizes, outermost first.
    """
    axes = re.findall(r"(\w+)=(\d+)", mesh)
    devices = 1
    for _, size in axes:
        devices *= int(size)
    given, _, results = arguments.partition("->")
    donated = ", tf.aliasing_output = 0 : i32"
    boundary = [
        re.sub(r"@\[([^\]]*)\](!?)", lambda m: f"{{sdy.sharding = {_sharding(m[1])}{donated if m[2] else ''}}}", part)
        for part in (given, results)
    ]
    inside = re.sub(r"@\[([^\]]*)\]", lambda m: _sharding(m[1]).removeprefix("#sdy.sharding"), body)
    mesh_text = ", ".join(f'"{name}"={size}' for name, size in axes)
    return (
        f"module @probe attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{\n"
        f"sdy.mesh @mesh = <[{mesh_text}]>\n"
        f"func.func public @main({boundary[0].strip()}) -> ({boundary[1].strip()}) {{\n{inside}\n}}\n}}\n"
    )


def until(trips: int) -> str:
    """The condition of a loop that counts %i from zero."""
    return f"""cond {{
      %n = stablehlo.constant dense<{trips}> : tensor<i32>
      %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }}"""


def _sharding(dims: str) -> str:
    inner = ", ".join(
        "{" + ", ".join(f'"{a}"' for a in d.strip().split("+") if a != "-") + "}" for d in dims.split(",")
    )
    return f"#sdy.sharding<@mesh, [{inner if dims.strip() else ''}]>"


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)]
