"""One program on one cluster: planned, compiled for CPU devices, run, and compared with one device.

Owns what counts as right: what XLA computes on one device of the program as it is, for that is what users compare with.
XLA has faults of its own there (a start that is not neutral it drops over dimensions of size 1, and counts several
times in long sums of bf16; 0.10.2), so a result that differs is compared with StableHLO's interpreter too, or, where
that knows too little, with XLA without its simplifier, and is wrong if it is right by neither. Each result is right as
a whole or not at all: a mixture of references is wrong. This hides a fault of ours only where it turns a result into
the very one of a reference that is itself wrong. Our passes take no part in a reference: they would hide faults of
theirs.

Runs in a process that may die; see `child`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import ml_dtypes
import numpy as np

from bench.differential.clusters import Place
from bench.differential.interpreter import interpreted
from bench.differential.program import data, facts_of
from rhino.compile import compile_module
from rhino.compile.module import parse, read
from rhino.errors import RhinoError
from rhino.plan.module import parse_module, plan_module
from rhino.program.element_types import element_type
from rhino.request import PlanRequest

# Compiling takes most of the time, and how fast the result is does not matter.
_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# The roundings of a few operations, in units of the largest element, where nothing is known of the program.
_ROUNDINGS = 256
# What `rhino.ir.diagnostics.describe_exception` makes of an exception that is not meant for users.
_INTERNAL = re.compile(r"unexpected \w+(Error|Exception|Stop\w+)\b|\bINTERNAL\b|Traceback")

_limits: Any = ml_dtypes.finfo  # it has no types

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one program on one cluster.

    Attributes:
      kind: "right", "wrong", "refused" (a RhinoError with a place in the program), "unlocated" (one without),
        "failed" (any other exception), "died" (the process ended), "hung", "skipped" (one device cannot do it either),
        "disputed" (right by the other reference, which is not of one mind with XLA on one device).
      detail: the largest error, the refusal's text, the exception.
      split: how many arguments and results are not whole on every device.
    """

    kind: str
    detail: str = ""
    split: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A program with the arguments it is run on.

    Attributes:
      text: a StableHLO module with @main.
      tolerances: largest absolute error of each result, from what its operations round; None where nothing is known:
        then `_ROUNDINGS` of the result's type, in units of its largest element.
    """

    name: str
    text: str
    arguments: Arrays
    tolerances: tuple[float, ...] | None = None


def reference(case: Case, **options: Any) -> list[np.ndarray[Any, Any]]:
    """What XLA computes on one device, from the program as it is."""
    return [np.asarray(out) for out in compile_module(case.text, "cpu", options={**_FAST, **options})(*case.arguments)]


def case_of_text(name: str, text: str) -> Case:
    """A program as `Program.text` writes it, its arguments drawn as it says: the same where others are cut away."""
    facts = facts_of(text)
    signature = read(parse(text))
    kinds = facts["arguments"] if facts else [[None, None, 1.0, f"%{i}"] for i in range(len(signature.arguments))]
    drawn = []
    for spec, (dtype, bound, error, name) in zip(signature.arguments, kinds, strict=True):
        random = np.random.default_rng([facts["seed"] if facts else 0, zlib.crc32(name.encode())])
        drawn.append(data(spec.shape, dtype or element_type(spec.dtype) or spec.dtype, bound, error, random))
    return Case(name, text, drawn, tuple(facts["tolerances"]) if facts else None)


def interpret(case: Case, expected: Arrays) -> Outcome:
    """Whether StableHLO's interpreter, which may end the process, says what XLA says on one device."""
    found = interpreted(case.text, case.arguments, range(len(expected)))
    if not found:
        return Outcome("skipped", "the interpreter does not know it")
    problems = differences(found, expected, case.tolerances)
    return Outcome("disputed" if problems else "right", _first(problems))


def attempt(case: Case, expected: Arrays, place: Place, second: bool = False) -> Outcome:
    """Plan, compile, run, compare. Lets nothing out but what is no Exception.

    Args:
      expected: the results of one device.
      second: whether another reference, which may end the process, is asked about results that differ from these.
    """
    try:
        module = parse_module(case.text, case.name)
        # Text names no file; the place of an operation is then its line here.
        planned = plan_module(module, PlanRequest(place.cluster, mesh=place.mesh, stages=1)).plan
        executable = compile_module(str(module), "cpu", options=_FAST)
        found = [np.asarray(out) for out in executable(*case.arguments)]
    except RhinoError as error:
        text = str(error).splitlines()[0][:400]
        located = re.match(r"\S+:\d+:\d+: ", text) is not None and not is_internal(text)
        return Outcome("refused" if located else "unlocated", text)
    except Exception as error:  # whatever it is, it is what this looks for
        return Outcome("failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:400]}")
    split = sum(any(t.sharding) for t in (*planned.arguments, *planned.outputs))

    def ask(numbers: Iterable[int]) -> Mapping[int, Array]:
        """The interpreter's results, and where it knows none, those without the simplifier, which loses starts."""
        wanted = set(numbers) if second else set()
        if not wanted:
            return {}
        plain = reference(case, xla_disable_hlo_passes="algsimp")
        return {i: plain[i] for i in wanted} | dict(interpreted(case.text, case.arguments, wanted))

    return replace(verdict(found, expected, case.tolerances, ask), split=split)


def verdict(
    found: Arrays, expected: Arrays, tolerances: Sequence[float] | None,
    ask: Callable[[Iterable[int]], Mapping[int, Array]],
) -> Outcome:  # fmt: skip
    """Right where nothing differs from one device, disputed where the interpreter has what does, else wrong.

    Args:
      ask: gives another reference's results, by number, as far as it has them.
    """
    results = dict(enumerate(found))
    problems = differences(results, expected, tolerances)
    others = ask(problems)
    again = differences({i: results[i] for i in others}, others, tolerances)
    left = {i: problem for i, problem in problems.items() if i not in others or i in again}
    return Outcome("wrong" if left else "disputed" if problems else "right", _first(left or problems))


def is_internal(text: str) -> bool:
    """Whether an error's text is not meant for users."""
    return _INTERNAL.search(text) is not None


def differences(
    found: Mapping[int, Array], expected: Arrays | Mapping[int, Array], tolerances: Sequence[float] | None
) -> dict[int, str]:
    """What is wrong with each result that is, by its number."""
    compared = {}
    for index, got in found.items():
        want = expected[index]
        compared[index] = _difference(got, want, tolerance(want) if tolerances is None else tolerances[index])
    return {index: problem for index, problem in compared.items() if problem}


def _first(problems: Mapping[int, str]) -> str:
    return next((f"result {index}: {problem}" for index, problem in problems.items()), "")


def _difference(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], limit: float) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    a, b = _wide(got), _wide(want)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | ((a != a) & (b != b)) | (np.abs(a - b) <= limit)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ by more than {limit:.3g}; at {list(at)} {a[at]} for {b[at]}"


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "iu":
        return array.astype(object) if array.dtype.itemsize == 8 else array.astype(np.int64)
    return array.astype(np.float64)


def tolerance(want: np.ndarray[Any, Any]) -> float:
    """`_ROUNDINGS` of the type, in units of the largest finite element; 0 for integers."""
    if want.dtype.kind in "biu" or not want.size:
        return 0.0
    try:
        unit = float(_limits(want.dtype).eps)
    except ValueError:  # int4
        return 0.0
    sizes = np.abs(_wide(want))
    return _ROUNDINGS * unit * float(np.max(sizes[np.isfinite(sizes)], initial=0.0)) if sizes.size else 0.0


def devices() -> None:
    """Eight CPU devices and 64-bit types, before the first use of jax."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_enable_x64", True)
