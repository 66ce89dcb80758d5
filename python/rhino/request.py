"""What a user asks of planning and compiling: every option once, with its default, meaning, choices and how it is read.

Owns these. `rhino.parallelize`, the flags of `rhino plan` and `rhino compile` and the options of the passes that plan
are made of them, or checked against them. Knows nothing of how plans are found or programs compiled.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from rhino.errors import RhinoError

if TYPE_CHECKING:
    from rhino.machine import Cluster

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def memory_bytes(limit: int | float | str | None) -> int:
    """Bytes of a limit such as 40e9, "40GiB" or "512 MB"; 0 for None, which stands for nine tenths of the device's.

    Raises:
      RhinoError: not a positive number of bytes.
    """
    if limit is None:
        return 0
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", str(limit))
    unit = _UNITS.get(found[2].upper()) if found else None
    nbytes = int(float(found[1]) * unit) if found and unit else 0
    if nbytes < 1:
        raise RhinoError(
            f"memory limit {limit!r} is not a positive number of bytes", 'write it as 40000000000 or "40GiB"'
        )
    return nbytes


def mesh_text(mesh: Sequence[int] | Mapping[str, int] | str | None) -> str:
    """The mesh as the pass option writes it, "2x4" or "data=2,model=4"; empty for None: the search chooses.

    Raises:
      RhinoError: not a list of positive sizes, or of axes with such sizes.
    """
    if mesh is None or mesh == "":
        return ""
    named = isinstance(mesh, Mapping) or (isinstance(mesh, str) and "=" in mesh)
    if isinstance(mesh, str):
        parts = mesh.split(",") if named else re.split(r"[x,]", mesh.lower())
    else:
        parts = [f"{name}={size}" for name, size in mesh.items()] if isinstance(mesh, Mapping) else list(map(str, mesh))
    parts = [re.sub(r"\s", "", part) for part in parts]
    form = r"[^=,]+=[1-9]\d*" if named else r"[1-9]\d*"
    twice = named and len({part.split("=")[0] for part in parts}) < len(parts)
    if twice or not parts or not all(re.fullmatch(form, part) for part in parts):
        raise RhinoError(
            f"mesh {mesh!r} is not a list of positive sizes, with names of their own or without",
            'write it as (2, 4), "2x4" or {"data": 2, "model": 4}, outermost first',
        )
    return (",".join if named else "x".join)(parts)


def mesh_of_devices(sizes: Mapping[Any, int], stages: int) -> str:
    """As `mesh_text`, of the axes of the user's `jax.sharding.Mesh`, those of one device left out.

    Of a pipeline it is the mesh of a stage: what is left of it without an outermost axis over the stages, else nothing.
    """
    axes = [(str(name), size) for name, size in sizes.items() if size > 1]
    if stages > 1:
        axes = axes[1:] if axes and axes[0][1] == stages else []
        if not axes:
            return ""
    if all(re.fullmatch(r"\w+", name) for name, _ in axes):
        return mesh_text(dict(axes) or (1,))
    return mesh_text([size for _, size in axes])


def stage_count(stages: int | str | None) -> int:
    """Pipeline stages as `rhino-auto` takes them: 0 for "if needed" (None), -1 for "auto".

    Raises:
      RhinoError: neither a count nor "auto".
    """
    if stages is None:
        return 0
    if stages == "auto":
        return -1
    try:
        count = int(stages)
    except ValueError:
        count = 0
    if count < 1:
        raise RhinoError(f"stages {stages!r} is not a number of stages", 'give 1 or more, or "auto"')
    return count


def seconds(budget: float | None) -> float:
    """A time to search, 0 for None: to the end.

    Raises:
      RhinoError: not more than 0 seconds.
    """
    if budget is None:
        return 0.0
    if not isinstance(budget, int | float) or not budget > 0:
        raise RhinoError(f"budget {budget!r} is not a time in seconds", "give more than 0, or leave it out")
    return float(budget)


def micro_batches(count: int | None) -> int:
    """A number of micro-batches, 0 for None: the search chooses.

    Raises:
      RhinoError: a negative number.
    """
    if count is not None and count < 0:
        raise RhinoError(f"microbatches {count} is not a number of micro-batches", "give 1 or more, or leave it out")
    return count or 0


@dataclass(frozen=True, slots=True)
class Asked:
    """How an option is told and read.

    Attributes:
      doc: what it means, for a pass, a flag and a keyword alike.
      read: the value of what a user gives; None stands for nothing given.
      choices: what it may be, and `own`, which besides these only Rhino's own callers may ask for.
      metavar: its value in help; empty for options that only Rhino's own callers give.
      keyword: its name in `rhino.parallelize`, where that is not the field's.
      flag: what a flag's text becomes before it is read.
    """

    doc: str
    read: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    metavar: str = ""
    keyword: str = ""
    flag: Callable[[str], Any] = str


def _asked(default: Any, doc: str, **how: Any) -> Any:
    how.setdefault("read", lambda given: default if given is None else given)
    return dataclasses.field(default=default, metadata={"asked": Asked(doc, **how)})


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for, and how; the module's text says what. Defaults leave a choice to the search.

    Attributes:
      cluster: what is planned for; None where something else says it.
    """

    cluster: Cluster | None = None
    level: str = _asked(
        "O1",
        "how hard to search; O0 only propagates the shardings that are there",
        choices=("O0", "O1", "O2"),
        metavar="L",
    )
    mesh: str = _asked(
        "",
        "sizes of the mesh's axes, outermost first, as 2x4 or data=2,model=4; by default searched",
        read=mesh_text,
        metavar="AxB",
    )
    memory_limit: int = _asked(
        0,
        "bytes per device that a plan may use; by default nine tenths of its memory",
        read=memory_bytes,
        metavar="BYTES",
    )
    budget: float = _asked(
        0.0,
        "seconds of planning after which the best plan so far is taken; by default no limit",
        read=seconds,
        metavar="SECONDS",
        keyword="search_budget",
        flag=float,
    )
    stages: int = _asked(
        0,
        "pipeline stages: 1 for none, auto (in a pass -1) for a pipeline if it is faster; by default that only where "
        "one program does not fit, or memory costs it much",
        read=stage_count,
        metavar="N",
    )
    microbatches: int = _asked(
        0,
        "micro-batches, of a pipeline those of each replica; by default as many as memory needs and is fastest",
        read=micro_batches,
        metavar="N",
        flag=int,
    )
    fewer: bool = _asked(False, "instead the most up to these that divide the batch, with stages cut as for all")
    groups: int = _asked(0, "groups of devices that the stages asked for share; by default that is left to the search")
    schedule: str = _asked("", "schedule of a pipeline; by default searched", metavar="S")
    statistics: str = _asked(
        "batch",
        "of which examples batch statistics are: micro-batch lets a model with BatchNorm be cut into micro-batches, "
        "whose results are not those of one device",
        choices=("batch", "micro-batch"),
        metavar="B",
    )
    remat: str = _asked(
        "auto",
        "what the backward pass computes again: auto takes away what the program has where there is memory, and adds "
        "to it where memory needs that, but not in a pipeline; keep leaves it as it is; none takes it away, and adds "
        "nothing",
        choices=("auto", "keep", "none"),
        metavar="R",
    )
    offload: str = _asked(
        "auto",
        "optimizer state in the memory of the hosts: auto where nothing else fits, and as little as that takes; none "
        "never",
        choices=("auto", "none"),
        own=("needed",),
        metavar="O",
    )
    annotations: str = _asked(
        "keep",
        "the program's own sharding annotations: ignore plans as if there were none",
        choices=("keep", "ignore"),
        own=("planned",),
        metavar="A",
    )

    @classmethod
    def of(cls, cluster: Cluster | None = None, **given: Any) -> PlanRequest:
        """The request of what a user gave, by name; None stands for nothing given.

        Raises:
          RhinoError: a value is not valid.
          TypeError: there is no such option.
        """
        return cls(cluster, **_read("planning", OPTIONS, given))

    def options(self) -> dict[str, Any]:
        """All but the cluster, by name."""
        return {name: getattr(self, name) for name in OPTIONS}


def _times(given: Cluster | str | bool | None) -> Cluster | bool | None:
    from rhino.machine import Cluster

    return Cluster.load(given) if isinstance(given, str) else given


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """How to compile what was planned.

    Attributes:
      options: XLA compiler options, which win over Rhino's own.
      overlap: a cluster by whose times XLA puts collectives beside computing; True for the one that runs the program,
        and None for it where one process has all of its devices: several must not come to different orders.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overlap: Cluster | bool | None = _asked(  # noqa: RUF009
        None,
        "put collectives beside computing, in the order that is best by the times of the cluster; compiles twice",
        read=_times,
        metavar="CLUSTER",
        flag=bool,
    )

    @classmethod
    def of(cls, options: Mapping[str, Any] | None = None, **given: Any) -> CompileRequest:
        """The request of what a user gave, by name; None stands for nothing given.

        Raises:
          RhinoError: a value is not valid.
          TypeError: there is no such option.
        """
        return cls(options or {}, **_read("compiling", COMPILE_OPTIONS, given))

    def on(self, cluster: Cluster | None, alone: bool = False) -> CompileRequest:
        """The same request where that cluster, if it is known, runs the program; `alone`: in one process."""
        meant = self.overlap is True or (alone and self.overlap is None)
        return dataclasses.replace(self, overlap=cluster) if meant and cluster else self

    @property
    def times(self) -> Cluster | None:
        """The cluster of `overlap`; None where XLA keeps to the plain order.

        Raises:
          RhinoError: it was left to say which.
        """
        if self.overlap is True:
            raise RhinoError("nothing says by which cluster's times to overlap", 'give one: overlap="dgx-h100:4"')
        return self.overlap or None

    def told(self) -> dict[str, Any]:
        """What was given, as plain data."""
        given = {name: getattr(self, name) for name in COMPILE_OPTIONS}
        return {name: getattr(value, "name", value) for name, value in given.items()} | {"options": dict(self.options)}


def _read(what: str, options: Mapping[str, Asked], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of what was given to planning or compiling. Raises as `PlanRequest.of`."""
    values = {}
    for name, value in given.items():
        if name not in options:
            raise TypeError(f"{what} has no option '{name}'; its options are {', '.join(options)}")
        option = options[name]
        if value is not None and option.choices and value not in option.choices:
            word = option.keyword or name
            raise RhinoError(f"{word} {value!r} is not available; {', '.join(option.choices)} are")
        values[name] = option.read(value)
    return values


def _options(request: type[PlanRequest | CompileRequest]) -> dict[str, Asked]:
    """By name, in the order of the fields."""
    return {f.name: f.metadata["asked"] for f in dataclasses.fields(request) if "asked" in f.metadata}


OPTIONS = _options(PlanRequest)
COMPILE_OPTIONS = _options(CompileRequest)
DEFAULTS = PlanRequest()
PLAIN = CompileRequest()


class CompileKeywords(TypedDict, total=False):
    """The options of compiling as keywords, for type checkers and editors."""

    overlap: Cluster | str | bool | None


class Keywords(CompileKeywords, total=False):
    """The options of planning and compiling as keywords of `rhino.parallelize`."""

    level: str | None
    mesh: Sequence[int] | Mapping[str, int] | str | None
    memory_limit: int | float | str | None
    search_budget: float | None
    stages: int | str | None
    microbatches: int | None
    schedule: str | None
    statistics: str | None
    remat: str | None
    offload: str | None
    annotations: str | None


def requests(given: Mapping[str, Any]) -> tuple[PlanRequest, CompileRequest]:
    """What `rhino.parallelize` was given, by keyword.

    Raises:
      RhinoError: a value is not valid.
      TypeError: there is no such keyword.
    """
    names = {option.keyword or name: name for name, option in (OPTIONS | COMPILE_OPTIONS).items() if option.metavar}
    for word in given:
        if word not in names:
            raise TypeError(f"parallelize() got an unexpected keyword argument '{word}'")
    planning = {names[word]: value for word, value in given.items() if names[word] in OPTIONS}
    compiling = {names[word]: value for word, value in given.items() if names[word] in COMPILE_OPTIONS}
    return PlanRequest.of(**planning), CompileRequest.of(**compiling)
