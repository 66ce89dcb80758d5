"""`rhino.Plan`: a plan as users hold it, with the file, the texts and the shardings that it gives.

Owns the public methods. What a plan is, is in `rhino.plan`; this imports neither jax nor MLIR before it must.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhino.errors import RhinoError
from rhino.plan import PlanData
from rhino.plan.file import load, plan_data, save

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from rhino.api.binding import Binding


@dataclass(frozen=True, slots=True, repr=False)
class Plan(PlanData):
    """The plan of one program on one cluster.

    Plans come from `Parallelized.plan`, `Plan.load` and `Plan.from_module`. Only the first kind is bound to the pytrees
    of a function, and so has `in_shardings` and `out_shardings`. Its fields are those of `rhino.plan.PlanData`.
    """

    binding: Binding | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(data: PlanData, binding: Binding | None = None) -> Plan:
        """A plan for users, of what was planned or read."""
        return Plan(**{f.name: getattr(data, f.name) for f in fields(PlanData)}, binding=binding)

    # --- where plans come from ------------------------------------------------------------------------------------

    @staticmethod
    def from_module(module: str | bytes | ir.Module) -> Plan:
        """The plan written in an annotated module: text, bytecode, or a parsed module (which the plan then holds).

        Raises:
          RhinoError: not a module, or one without a valid `rhino.plan`.
        """
        from rhino.plan.module import read_plan  # MLIR is loaded on first use

        return Plan.of(read_plan(module))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file that `save` wrote.

        Raises:
          RhinoError: the file cannot be read, is not a plan, or has another schema version.
        """
        return Plan.of(load(Path(path)))

    def save(self, path: str | Path) -> None:
        """Write the plan with its module as JSON; equal plans give equal bytes.

        Raises:
          RhinoError: the file cannot be written.
        """
        save(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """The plan without its module as plain data, with the keys of the JSON file."""
        return plan_data(self)

    def summary(self, measured: Any = None) -> str:
        """What was chosen and why, for people.

        Args:
          measured: the executable `Parallelized.compile` returned: what XLA measured is shown beside the predictions.
        """
        from rhino.report.measured import measure
        from rhino.report.text import summary

        return summary(self, measure(measured))

    def report_html(self, path: str | Path | None = None, measured: Any = None) -> str:
        """The same as one self-contained HTML page, which is written to `path` if that is given.

        Args:
          measured: as for `summary`.

        Raises:
          RhinoError: the file cannot be written.
        """
        from rhino.report.html import page, write
        from rhino.report.measured import measure

        text = page(self, measure(measured))
        if path is not None:
            write(text, Path(path))
        return text

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        from rhino.report.text import short

        return short(self)

    def _repr_html_(self) -> str:
        from rhino.report.html import frame

        return frame(self)

    # --- use with plain jax ----------------------------------------------------------------------------------------

    @property
    def in_shardings(self) -> Any:
        """A tuple with one pytree per positional argument, for `jax.jit(step, in_shardings=...)`.

        Leaves are `NamedSharding` over the real devices, or `PartitionSpec` when the cluster is not this process's.
        They are of the shapes the user sees. A strided argument has no such sharding: its leaf splits each dimension in
        contiguous parts, as many as the plan splits its factors into, so that a device holds as many bytes. For an
        object of NNX there is an `nnx.State` of shardings.

        Raises:
          RhinoError: the plan is not bound to a function.
        """
        return _of_values(self._bound().in_shardings)

    @property
    def keyword_shardings(self) -> Any:
        """As `in_shardings`, for keyword-only arguments: a dictionary by name, which `jax.jit` cannot take."""
        return _of_values(self._bound().keyword_shardings)

    @property
    def out_shardings(self) -> Any:
        """A pytree like the step's result, for `jax.jit(step, out_shardings=...)`; leaves as in `in_shardings`."""
        return _of_values(self._bound().out_shardings)

    @property
    def partition_specs(self) -> Any:
        """As `in_shardings`, but always with `PartitionSpec` leaves."""
        return _of_values(self._bound().partition_specs)

    def _bound(self) -> Binding:
        if self.binding is None:
            raise RhinoError(
                "the plan is not bound to a function's pytrees",
                "get a bound one from rhino.parallelize(step, plan=plan).plan(state, batch)",
            )
        return self.binding


def _of_values(tree: Any) -> Any:
    """A pytree of shardings as the user knows it: for an object that the step updates, that of its `nnx.State`."""
    from rhino.api.objects import Updated, states

    return states(tree.result if isinstance(tree, Updated) else tree)
