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
from rhino.ir.pipeline.messages import EdgeMessages
from rhino.ir.pipeline.outline import outline
from rhino.ir.pipeline.program import read_program
from rhino.machine import Cluster
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import ScheduledStep
from rhino.request import PLAIN, CompileRequest
from rhino.runtime.compile import compile_fragments, pipeline_devices
from rhino.runtime.executor import PipelineExecutable
from rhino.runtime.here import messages_here
from rhino.runtime.script import make_script

Progress = Callable[[int, int, str], None]


def build(
    module: ir.Module | str | bytes,
    devices: Sequence[Any] | None = None,
    target: str | None = None,
    *,
    schedule: ScheduledStep | None = None,
    how: CompileRequest = PLAIN,
    cluster: Cluster | None = None,
    strategy: str | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    callbacks: Callbacks | None = None,
) -> PipelineExecutable:
    """Compiles a module in fragments (`rhino-form-fragments`) in the order of its `rhino.schedule`.

    Of an `ir.Module` the transfers' messages are those of the module afterwards: what is planned here is written there.

    Args:
      devices: what the numbers of `rhino.placement` count; by default the target's first.
      target: as for `rhino.compile.compile_module`; by default that of the devices, or "cpu". A deviceless one gives an
        executable that cannot run, and says what it needs and sends.
      schedule: in place of the module's own.
      how: to compile; with `overlap` a stage's devices count as the first of that cluster.
      cluster: what the network between processes is, by default one of 10 Gbit/s.
      strategy, scheduler: plan all transfers anew with these; by default the module's messages are sent
        (`rhino.multicast`), and only what is for other hosts than these processes is planned, in the module.
      progress: called as (done, total, label) while fragments are compiled.
      callbacks: what calls of Python functions in the module refer to; by default such a module is refused.

    Raises:
      RhinoError: no fragments, no schedule, a schedule that does not fit them, too few devices, or XLA refuses.
    """
    parsed = module if isinstance(module, ir.Module) else parse(module)
    target = _target(target, devices)
    messages: dict[str, EdgeMessages] = {}
    with parsed.context:
        program = read_program(parsed)
        chosen = schedule or _schedule(parsed)
        if target not in DEVICELESS:
            devices = pipeline_devices(program, target) if devices is None else devices
            messages, _ = messages_here(parsed, devices, cluster, strategy, scheduler)
        texts = [fragment.text for fragment in outline(parsed)]
    return build_program(
        program, chosen, texts, devices, target,
        how=how, messages=messages, progress=progress, callbacks=callbacks,
    )  # fmt: skip


def build_program(
    program: PipelineProgram,
    schedule: ScheduledStep,
    modules: Sequence[str | bytes],
    devices: Sequence[Any] | None = None,
    target: str | None = None,
    *,
    how: CompileRequest = PLAIN,
    messages: Mapping[str, EdgeMessages] | None = None,
    progress: Progress | None = None,
    callbacks: Callbacks | None = None,
) -> PipelineExecutable:
    """As `build`, of a program that was read already, the module of each of its fragments, and each edge's messages."""
    target = _target(target, devices)
    script = make_script(program, schedule)
    compiled = compile_fragments(program, modules, script.donated, target, devices, how, progress, callbacks)
    return PipelineExecutable(program, schedule, script, compiled, target, messages=messages)


def _target(target: str | None, devices: Sequence[Any] | None) -> str:
    if target is None:
        target = "cpu" if not devices or devices[0].platform == "cpu" else "cuda"
    check_target(target)
    if devices is not None and target in DEVICELESS:
        raise RhinoError(f"{target} is compiled for without devices, and {len(devices)} were given")
    return target


def _schedule(module: ir.Module) -> ScheduledStep:
    data = RhinoSchedule.of(module)
    if data is None:
        raise RhinoError("the module has no rhino.schedule", "run rhino-schedule on it, or give a schedule")
    return ScheduledStep.from_data(data)
