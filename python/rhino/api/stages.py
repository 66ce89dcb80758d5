"""What `step.trace` and `step.lower` return, spelled as in `jax.stages`; and a step that is a method.

Owns these views of a planned call. Knows nothing of how a call is traced, planned or compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rhino.api.built import Built, executable, lowered
from rhino.api.fitting import warn_if_lacking
from rhino.api.objects import Updated, states
from rhino.api.plan import Plan
from rhino.api.trace import Trace
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.plan import is_pipeline

if TYPE_CHECKING:
    from rhino.api.parallelized import Parallelized

# Calls an executable of pytrees with the user's objects: what runs, the call's arguments and keywords.
Caller = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Stage:
    """What a traced call takes and returns."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @property
    def args_info(self) -> Any:
        """The pytree (args, kwargs) of what the step takes: shape, dtype, whether donated."""
        return self._trace.info[0]

    @property
    def out_info(self) -> Any:
        """The pytree of shapes and types that the step returns."""
        found = self._trace.info[1]
        return states(found.result) if isinstance(found, Updated) else found

    @property
    def in_tree(self) -> Any:
        """The structure of (args, kwargs)."""
        return self._trace.in_tree

    @property
    def out_tree(self) -> Any:
        """The structure of what the step returns."""
        return self._trace.out_tree


class Traced(_Stage):
    """As `jax.stages.Traced`: a step traced, and not planned yet."""

    def __init__(self, trace: Trace, lower: Callable[[], Lowered]) -> None:
        super().__init__(trace)
        self._lower = lower

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr, of flat arguments."""
        return self._trace.jaxpr

    @property
    def fun_name(self) -> str:
        """The step's name."""
        return self._trace.name

    def lower(self) -> Lowered:
        """Plan it."""
        return self._lower()


class Lowered(_Stage):
    """As `jax.stages.Lowered`: a step planned, and not compiled yet.

    Attributes:
      plan: the plan.
    """

    def __init__(self, built: Built, cluster: Cluster, caller: Caller | None) -> None:
        super().__init__(built.trace)
        self._built = built
        self._cluster = cluster
        self._caller = caller

    @property
    def plan(self) -> Plan:
        """What was chosen."""
        return self._built.plan

    def as_text(self, dialect: str | None = None) -> str:
        """The annotated module, StableHLO with shardings.

        Raises:
          RhinoError: another dialect is asked for.
        """
        if dialect not in (None, "stablehlo"):
            raise RhinoError(f"dialect {dialect!r}: a plan is StableHLO", "compile().as_text() is XLA's program")
        return self.plan.module

    def cost_analysis(self) -> dict[str, float]:
        """What XLA counts in the step before it is split, as of `jax.stages.Lowered`: "flops", "bytes accessed", ...

        Raises:
          RhinoError: of a pipeline.
        """
        if is_pipeline(self.plan):
            raise RhinoError("XLA has no cost of a pipeline", "see plan.predicted, or plan with stages=1")
        found = lowered(self._built, self._cluster)[0].cost_analysis()
        return dict(found or {})

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Any:
        """The executable, called like the step (keyword-only arguments as one dictionary, last).

        The program is the one that was lowered: where it needs more memory than devices have, this warns.

        Args:
          compiler_options: of XLA, for this executable alone: calls of the step use the one without.

        Raises:
          RhinoError: the devices are of this process's kind but too few, or XLA refuses.
        """
        known = self._built.compiled is not None
        found = executable(self._built, self._cluster, compiler_options)
        if not known and not compiler_options:
            warn_if_lacking(self._built, self._cluster)
        return found if self._caller is None else ObjectExecutable(found, self._caller)


class ObjectExecutable:
    """An executable of a step over objects: calls update them. All else is of the executable that it holds.

    Attributes:
      inner: that executable, of pytrees of arrays.
    """

    def __init__(self, inner: Any, caller: Caller) -> None:
        self.inner = inner
        self._caller = caller

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Raises as the executable."""
        return self._caller(self.inner, args, kwargs)


class BoundStep:
    """A step that is a method, of one object: its first argument."""

    def __init__(self, step: Parallelized, instance: Any) -> None:
        self.__func__ = step
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        return self.__func__(self.__self__, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {self.__self__!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__func__, name)
        if name in ("plan", "compile", "trace", "lower", "eval_shape"):
            return functools.partial(found, self.__self__)
        return found
