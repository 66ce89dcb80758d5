"""Kernels that users describe: `register`, and the look-up of what was registered.

Owns the table of this process. Jax primitives and Pallas kernels are known by name here; who traces them asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.errors import RhinoError
from rhino.kernels.data import RATES, Entry, KernelCall, KernelTensor, Known
from rhino.kernels.rules import RuleText, make_rule, parse_rule
from rhino.program.data import Rule

Count = int | Callable[..., int]
Resize = Callable[[Mapping[str, Any], Sequence[KernelTensor], Sequence[KernelTensor]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Registration:
    """What a user said of a kernel; the fields are `register`'s.

    `primitive` is the jax primitive, and `place` the "file:line" of the function, if it was one.
    """

    name: str
    rule: RuleText
    reduction: tuple[str, ...]
    whole: tuple[str, ...]
    sizes: Mapping[str, int]
    flops: Count | None
    nbytes: Count | None
    rate: str
    resize: Resize | None
    primitive: Any = None
    place: str = ""

    def describe(self, call: KernelCall) -> Known:
        """What is known of a call whose dimensions may be split as the rule says."""
        rule, names = make_rule(
            self.rule, call.operands, call.results, reduction=self.reduction, whole=self.whole, sizes=self.sizes
        )
        return self.known(call, rule, names, dict.fromkeys(self.whole, "its registration says so"))

    def known(
        self,
        call: KernelCall,
        rule: Rule,
        names: tuple[str, ...],
        whole: Mapping[str, str],
        flops: int = 0,
        nbytes: int = 0,
    ) -> Known:
        """The costs that the user gave, by default those given here, with a rule."""
        return Known(
            rule=rule,
            names=names,
            flops=_count(self.flops, call, flops),
            nbytes=_count(self.nbytes, call, nbytes or call.nbytes),
            dtype=call.operands[0].dtype if call.operands else "f32",
            rate=self.rate,
            whole=whole,
        )

    def entry(self) -> Entry:
        """An entry for calls that stand in the program as such."""
        resize = self.resize
        if resize is None:
            return Entry(self.name, (self.name,), "registered", self.describe)

        def resized(
            call: KernelCall, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]
        ) -> Mapping[tuple[str, ...], Any]:
            return {(key,): value for key, value in resize(call.config, operands, results).items()}

        return Entry(self.name, (self.name,), "registered", self.describe, resized)


_REGISTERED: dict[str, Registration] = {}


def register(
    target: Any,
    rule: str,
    *,
    reduction_factors: Collection[str] = (),
    need_replication_factors: Collection[str] = (),
    flops: Count | None = None,
    bytes: Count | None = None,
    rate: str = "tensor",
    resize: Resize | None = None,
    **factor_sizes: int,
) -> None:
    """Says how a kernel can be split over devices, and what it costs. The last description of a target holds.

        rhino.kernels.register(
            "my_flash_attention", rule="b h s d, b h t d, b h t d -> b h s d", need_replication_factors=("d",),
            flops=lambda q, k, v: 4 * math.prod(q.shape) * k.shape[2],
        )

    Args:
      target: the target of a custom call or `jax.ffi.ffi_call`; a Pallas kernel, as the function that was given to
        `pallas_call` or its name; or a jax primitive.
      rule: factors of each dimension, operands -> results, in the language of `jax.custom_partitioning`. A factor that
        results lack, and that is not in `reduction_factors`, is never split.
      reduction_factors: what the kernel sums over; parts are added up.
      need_replication_factors: what has to be whole.
      flops, bytes: of one call with whole operands; a number, or a function of the operands, each with `shape` and
        `dtype` ("bf16"). By default no arithmetic is counted, and as bytes operands and results once.
      rate: what limits the arithmetic: "tensor" (matrix units), "vector", "attention", "attention-backward".
      resize: for custom calls whose configuration holds sizes: a function of the configuration (a dictionary), the
        local operands and the local results, that returns the configuration for them.
      factor_sizes: sizes of factors that are only in brackets.

    Raises:
      RhinoError: the rule is not one, or it does not have the factors that are named.
    """
    name = kernel_name(target)
    parsed = parse_rule(rule)
    for given in (*reduction_factors, *need_replication_factors, *factor_sizes):
        if given not in parsed.names:
            raise RhinoError(
                f"register '{name}': rule '{rule}' has no factor '{given}'", f"it has {', '.join(parsed.names)}"
            )
    if rate not in RATES:
        raise RhinoError(f"register '{name}': rate {rate!r} is not known", f"one of {', '.join(RATES)}")

    _REGISTERED[name] = Registration(
        name, parsed, tuple(reduction_factors), tuple(need_replication_factors), dict(factor_sizes), flops, bytes, rate,
        resize, target if hasattr(target, "bind") else None, _place(target),
    )  # fmt: skip


def unregister(target: Any) -> None:
    """Forgets a kernel; nothing happens where there is none."""
    _REGISTERED.pop(kernel_name(target), None)


def registered(target: str, place: str = "") -> Registration | None:
    """What a user said of a target, or of the function that stands at a place; None if nothing."""
    found = _REGISTERED.get(target)
    if found is None and place:
        return next((given for given in _REGISTERED.values() if given.place == place), None)
    return found


def registrations() -> tuple[Registration, ...]:
    """All of this process, in the order in which they were made."""
    return tuple(_REGISTERED.values())


def kernel_name(target: Any) -> str:
    """The name by which calls of a kernel are known: of a function its own, of a jax primitive its name.

    Raises:
      RhinoError: it has no name.
    """
    if isinstance(target, str) and target:
        return target
    target = _function(target)
    for attribute in ("name", "__name__"):
        name = getattr(target, attribute, None)
        if isinstance(name, str) and name:
            return name
    raise RhinoError(
        f"{target!r} has no name", "give the kernel's function, a jax primitive, or the target of a custom call"
    )


def _function(target: Any) -> Any:
    """The function itself: `functools.partial` is how kernels get their block sizes."""
    while hasattr(target, "func"):
        target = target.func
    return target


def _place(target: Any) -> str:
    code = getattr(_function(target), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _count(given: Count | None, call: KernelCall, default: int) -> int:
    if given is None:
        return default
    return int(given(*call.operands) if callable(given) else given)
