"""The passes by name, and what makes a class a pass: a frozen dataclass whose fields are its options.

Owns the table of names, loaded on use, and option types. Reading it loads neither jaxlib nor the passes themselves.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from rhino.errors import RhinoError, nearest
from rhino.ir.diagnostics import PassError, PassLog
from rhino.request import DEFAULTS, OPTIONS

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from rhino.ir.session import Session

__all__ = ["TABLE", "Option", "Pass", "PassError", "PassLog", "PassPipeline", "build", "load", "option", "register"]

# name -> "module:class". A row per pass, in the order of the pipeline.
TABLE = {
    "rhino-inline": "rhino.passes.normalize.inline:Inline",
    "rhino-forward-copies": "rhino.passes.normalize.forward_copies:ForwardCopies",
    "rhino-sink-constants": "rhino.passes.normalize.sink_constants:SinkConstants",
    "rhino-batch-lookups": "rhino.passes.normalize.batch_lookups:BatchLookups",
    "rhino-neutral-starts": "rhino.passes.normalize.neutral_starts:NeutralStarts",
    "rhino-convert-operands": "rhino.passes.normalize.convert_operands:ConvertOperands",
    "rhino-delay-random": "rhino.passes.normalize.delay_random:DelayRandom",
    "rhino-adopt-mesh": "rhino.passes.manual.adopt_mesh:AdoptMesh",
    "rhino-describe-kernels": "rhino.passes.kernels.describe_kernels:DescribeKernels",
    "rhino-classify-args": "rhino.passes.normalize.classify_args:ClassifyArgs",
    "rhino-recompute": "rhino.passes.normalize.recompute:Recompute",
    "rhino-order-products": "rhino.passes.normalize.order_products:OrderProducts",
    "rhino-offload": "rhino.passes.normalize.offload:Offload",
    "rhino-expose-strided-dims": "rhino.passes.normalize.expose_strided_dims:ExposeStridedDims",
    "rhino-split-scans": "rhino.passes.normalize.split_scans:SplitScans",
    "rhino-adopt-microbatches": "rhino.passes.partition.adopt_microbatches:AdoptMicrobatches",
    "rhino-split-microbatch": "rhino.passes.partition.split_microbatch:SplitMicrobatch",
    "rhino-accumulate-in-loops": "rhino.passes.partition.accumulate_in_loops:AccumulateInLoops",
    "rhino-plan-sharding": "rhino.passes.plan.plan_sharding:PlanSharding",
    "rhino-partition-kernels": "rhino.passes.kernels.partition_kernels:PartitionKernels",
    "rhino-plan-stages": "rhino.passes.stage.plan_stages:PlanStages",
    "rhino-form-fragments": "rhino.passes.stage.form_fragments:FormFragments",
    "rhino-schedule": "rhino.passes.stage.schedule:Schedule",
    "rhino-replicate-fragments": "rhino.passes.stage.replicate_fragments:ReplicateFragments",
    "rhino-lower-transfers": "rhino.passes.stage.lower_transfers:LowerTransfers",
    "rhino-plan-pipeline": "rhino.passes.plan.plan_pipeline:PlanPipeline",
    "rhino-plan-parallelism": "rhino.passes.plan.plan_parallelism:PlanParallelism",
    "rhino-sum-later": "rhino.passes.partition.sum_later:SumLater",
    "rhino-gather-earlier": "rhino.passes.partition.gather_earlier:GatherEarlier",
    "rhino-pair-trips": "rhino.passes.partition.pair_trips:PairTrips",
    "rhino-estimate": "rhino.passes.plan.estimate:Estimate",
    "rhino-verify": "rhino.passes.normalize.verify:Verify",
    "rhino-auto": "rhino.passes.pipelines:Auto",
}

OPTION_TYPES = ("bool", "int", "float", "str", "tuple[str, ...]", "tuple[int, ...]")


class Pass(ABC):
    """Base of all passes. A subclass decorated with `register` is frozen; its fields are the options.

    `name` is the registered name, `runs` those of the passes that it may have run. `run` reads and rewrites the module
    in place and reports through the log. It calls no other pass: `run_pipeline` has the manager run them. It keeps no
    handle to an operation across a C++ one.
    """

    name: ClassVar[str] = ""
    runs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, module: ir.Module, log: PassLog) -> None:
        """Transform the module; raise PassError to stop."""

    def run_pipeline(
        self, passes: Sequence[Pass | str], module: ir.Module, log: PassLog, session: Session | None = None
    ) -> None:
        """Have the pass manager run passes on the module before this one goes on: all that looks at passes sees them.

        Which of `runs` they are may depend on what this pass found. Statistics and time are their own.

        Args:
          session: theirs; by default that of the run.

        Raises:
          what the first that fails raises; none after it runs.
        """
        assert log.pipeline is not None, f"'{self.name}' runs other passes: add it to a PassManager"
        log.pipeline(passes, module, session or log.session)

    def __str__(self) -> str:
        """The textual form, `name{option=value ...}`, with the options that differ from their defaults."""
        given = []
        for spec in options_of(type(self)):
            value = getattr(self, spec.field)
            if value != spec.default:
                given.append(f"{spec.name}={_to_text(value)}")
        return self.name + (f"{{{' '.join(given)}}}" if given else "")


class PassPipeline(Pass):
    """A pass that is a list of other passes, given by `expand`."""

    @abstractmethod
    def expand(self) -> Sequence[Pass | str]:
        """The passes in order, as objects or as pipeline text."""

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Has the pass manager run them, where it has not put them in this one's place."""
        self.run_pipeline(self.expand(), module, log)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option: its name in text (kebab-case), its field in Python, its type as written, its default and meaning."""

    name: str
    field: str
    type: str
    default: Any
    doc: str = ""
    choices: tuple[str, ...] = ()

    def convert(self, text: str) -> Any:
        """The value that `text` stands for. Raises RhinoError naming the option, the text and what was expected."""
        if self.type.startswith("tuple"):
            kind = "int" if "int" in self.type else "str"
            return tuple(self._scalar(part.strip(), kind) for part in text.split(",")) if text else ()
        return self._scalar(text, self.type)

    def _scalar(self, text: str, kind: str) -> Any:
        if kind == "str":
            if self.choices and text not in self.choices:
                raise RhinoError(f"option '{self.name}' is '{text}' but must be one of {', '.join(self.choices)}")
            return text
        try:
            if kind == "bool":
                return {"": True, "true": True, "1": True, "false": False, "0": False}[text.lower()]
            return int(text, 0) if kind == "int" else float(text)
        except (KeyError, ValueError):
            wanted = {"bool": "true or false", "int": "an integer", "float": "a number"}[kind]
            raise RhinoError(f"option '{self.name}' is '{text}' but must be {wanted}") from None


T = TypeVar("T")


def option(default: T, doc: str, choices: Sequence[str] = ()) -> T:
    """A field of a pass with its documentation and, for strings, the values allowed."""
    # To type checkers it is the default itself: they know defaults of field specifiers by keyword only.
    made: T = dataclasses.field(default=default, metadata={"doc": doc, "choices": tuple(choices)})
    return made


def asked(name: str, doc: str = "", choices: Sequence[str] = ()) -> Any:
    """A field of a pass that is the option `name` of a request for a plan; here with a meaning or values of its own."""
    known = OPTIONS[name]
    return option(getattr(DEFAULTS, name), doc or known.doc, choices or (*known.choices, *known.own))


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def register(cls: type[T]) -> type[T]:
    """Make a class a pass: a frozen dataclass with a name, a documented purpose and options of known types.

    Raises:
      TypeError: the class has no name or docstring, or a field that text cannot express.
    """
    made = dataclasses.dataclass(frozen=True)(cls)
    if not issubclass(made, Pass) or not made.name:
        raise TypeError(f"{cls.__name__} must derive from Pass and define its name")
    if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):
        raise TypeError(f"{cls.__name__} must have a docstring: Summary, Requires, Ensures, Options, Example")
    for spec in options_of(made):
        if spec.type not in OPTION_TYPES:
            raise TypeError(f"{cls.__name__}.{spec.field} has type {spec.type}, not one of {', '.join(OPTION_TYPES)}")
    return made


def options_of(cls: type[Pass]) -> tuple[Option, ...]:
    """The options of a pass class, in the order of its fields."""
    return tuple(
        Option(
            f.name.replace("_", "-"),
            f.name,
            f.type if isinstance(f.type, str) else f.type.__name__,
            f.default,
            f.metadata.get("doc", ""),
            f.metadata.get("choices", ()),
        )
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    )


def load(name: str) -> type[Pass]:
    """The class of a registered pass, importing its module. Raises RhinoError for an unknown name."""
    if name not in TABLE:
        raise RhinoError(f"unknown pass '{name}'", suggest(name, TABLE) or LIST)
    module, _, cls = TABLE[name].partition(":")
    found: type[Pass] = getattr(import_module(module), cls)
    return found


def made(name: str, **options: Any) -> Pass:
    """A registered pass with the values of its options, by field."""
    return load(name)(**options)


def build(name: str, given: Sequence[tuple[str, str]]) -> Pass:
    """A registered pass with the options given as (name, text). Raises RhinoError."""
    cls = load(name)
    specs = {spec.name: spec for spec in options_of(cls)}
    values: dict[str, Any] = {}
    for key, text in given:
        if key not in specs:
            known = f"its options are {', '.join(specs)}" if specs else "it has none"
            raise RhinoError(f"'{name}' has no option '{key}'", known)
        try:
            values[specs[key].field] = specs[key].convert(text)
        except RhinoError as error:
            raise RhinoError(f"'{name}': {error.message}") from None
    return cls(**values)


# Where to look when no name is close.
LIST = "rhino-opt --list-passes prints the names"


def suggest(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    """A remedy sentence with the closest known name, or empty."""
    close = nearest(name, known)
    return f"did you mean '{close}'?" if close else ""


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return f"'{text}'" if not text or any(c in text for c in " {}'\"=,()") else text
