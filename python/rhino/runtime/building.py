"""From a module in fragments with its schedule to an executable: read, put in order, compile.

Owns the order of these steps. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.compile._jax_callbacks import Callbacks
from rhino.compile.module import parse
from rhino.compile.target import DEVICELESS, check_target
from rhino.dialect.attributes import RhinoSchedule
from rhino.errors import RhinoError
from rhino.ir.pipeline import read_program
from rhino.machine import Cluster
from rhino.passes.stage.outline import outline
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import ScheduledStep
from rhino.runtime.compile import compile_fragments
from rhino.runtime.executor import PipelineExecutable
from rhino.runtime.script import make_script

Progress = Callable[[int, int, str], None]


def build(
    module: ir.Module | str | bytes,
    devices: Sequence[Any] | None = None,
    target: str | None = None,
    *,
    schedule: ScheduledStep | None = None,
    options: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    strategy: str | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    callbacks: Callbacks | None = None,
) -> PipelineExecutable:
    """Compiles a module in fragments (`rhino-form-fragments`) in the order of its `rhino.schedule`.

    Args:
      devices: what the numbers of `rhino.placement` count; by default the target's first.
      target: as for `rhino.compile.compile_module`; by default that of the devices, or "cpu". A deviceless one gives an
        executable that cannot run, and says what it needs and sends.
      schedule: in place of the module's own.
      options: XLA compiler options.
      cluster, strategy, scheduler: as for `PipelineExecutable`.
      progress: called as (done, total, label) while fragments are compiled.
      callbacks: what calls of Python functions in the module refer to; by default such a module is refused.

    Raises:
      RhinoError: no fragments, no schedule, a schedule that does not fit them, too few devices, or XLA refuses.
    """
    parsed = module if isinstance(module, ir.Module) else parse(module)
    with parsed.context:
        program = read_program(parsed)
        texts = [fragment.text for fragment in outline(parsed)]
        chosen = schedule or _schedule(parsed)
    return build_program(
        program, chosen, texts, devices, target,
        options=options, cluster=cluster, strategy=strategy, scheduler=scheduler, progress=progress,
        callbacks=callbacks,
    )  # fmt: skip


def build_program(
    program: PipelineProgram,
    schedule: ScheduledStep,
    modules: Sequence[str | bytes],
    devices: Sequence[Any] | None = None,
    target: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    strategy: str | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    callbacks: Callbacks | None = None,
) -> PipelineExecutable:
    """As `build`, of a program that was read already and the module of each of its fragments."""
    if target is None:
        target = "cpu" if not devices or devices[0].platform == "cpu" else "cuda"
    check_target(target)
    if devices is not None and target in DEVICELESS:
        raise RhinoError(f"{target} is compiled for without devices, and {len(devices)} were given")
    script = make_script(program, schedule)
    compiled = compile_fragments(program, modules, script.donated, target, devices, options, progress, callbacks)
    return PipelineExecutable(
        program, schedule, script, compiled, target, cluster=cluster, strategy=strategy, scheduler=scheduler
    )


def _schedule(module: ir.Module) -> ScheduledStep:
    data = RhinoSchedule.of(module)
    if data is None:
        raise RhinoError("the module has no rhino.schedule", "run rhino-schedule on it, or give a schedule")
    return ScheduledStep.from_data(data)
