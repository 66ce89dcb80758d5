"""Fragments become XLA executables on the devices of their groups: each distinct program is compiled once.

Owns what is the same program, and the donation written on it. Knows neither schedules nor how a step runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxlib.mlir import ir

from rhino.compile._jax_callbacks import Callbacks
from rhino.compile.devices import target_devices
from rhino.compile.executable import Executable, compile_prepared, prepare_for
from rhino.compile.module import MainSignature, attribute_dicts, calls_python, main_function, parse
from rhino.compile.target import DEVICELESS
from rhino.dialect.context import to_bytecode
from rhino.errors import RhinoError
from rhino.pipeline.program import Fragment, PipelineProgram
from rhino.request import PLAIN, CompileRequest
from rhino.runtime.arrays import is_here

_DONATION = ("tf.aliasing_output", "jax.buffer_donor")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """All fragments of a program, ready to be called.

    Attributes:
      executables: one per fragment; for a deviceless target, fragments of one program share theirs. None for a group
        that has no device of this process.
      devices: per group, its devices in the order of its mesh.
      programs: per fragment, the first fragment with the same program.
      seconds: wall time of compiling.
    """

    executables: tuple[Executable | None, ...]
    devices: tuple[tuple[Any, ...], ...]
    programs: tuple[int, ...]
    seconds: float


def compile_fragments(
    program: PipelineProgram,
    modules: Sequence[str | bytes],
    donated: Sequence[Sequence[int]],
    target: str,
    devices: Sequence[Any] | None = None,
    how: CompileRequest = PLAIN,
    progress: Callable[[int, int, str], None] | None = None,
    callbacks: Callbacks | None = None,
) -> CompiledPipeline:
    """Compiles the module of every fragment.

    Args:
      donated: per fragment, the operands whose buffers it may reuse.
      devices: what the program's meshes count; by default the target's.
      progress: called as (done, total, label) for each distinct program.
      callbacks: what calls of Python functions in the modules refer to.

    Raises:
      RhinoError: too few devices, or a fragment that XLA refuses; the message names it.
    """
    start = time.perf_counter()
    groups = _group_devices(program, target, devices)
    mine = [target in DEVICELESS or is_here(group) for group in groups]
    prepared: list[tuple[MainSignature, bytes]] = []
    first: dict[tuple[str, int], int] = {}
    programs: list[int] = []
    for fragment, module, donors in zip(program.fragments, modules, donated, strict=True):
        ready = _named(fragment, prepare_for, _with_donors(module, donors, fragment), target)
        _check_devices(program, fragment, ready[0])
        prepared.append(ready)
        if mine[fragment.group]:
            programs.append(first.setdefault((_text(ready[1]), ready[0].devices), fragment.index))
        else:
            programs.append(fragment.index)

    # XLA keeps no program with functions in its cache: only those that call one are given them.
    used = [callbacks if calls_python(bytecode) else None for _, bytecode in prepared]

    def work(index: int) -> Executable:
        fragment = program.fragments[index]
        there = (target, groups[fragment.group], how, used[index])
        return _named(fragment, compile_prepared, *prepared[index], *there)

    distinct = list(first.values())
    # XLA lets go of the interpreter while it compiles. Its CPU compiler uses all cores by itself.
    workers = 1 if target == "cpu" else max(1, min(len(distinct), os.cpu_count() or 1))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        compiled = {}
        for index, made in zip(distinct, pool.map(work, distinct), strict=True):
            compiled[index] = made
            if progress is not None:
                progress(len(compiled), len(distinct), "compiling the stages")
    there: dict[tuple[int, int], Executable] = {(i, program.fragments[i].group): e for i, e in compiled.items()}
    executables: list[Executable | None] = []
    for fragment, origin in zip(program.fragments, programs, strict=True):
        if not mine[fragment.group]:
            executables.append(None)
            continue
        key = (origin, fragment.group)
        if key not in there:
            here = compiled[origin]
            there[key] = here if target in DEVICELESS else _named(fragment, here.on, groups[fragment.group])
        executables.append(there[key])
    return CompiledPipeline(tuple(executables), groups, tuple(programs), time.perf_counter() - start)


def _group_devices(program: PipelineProgram, target: str, devices: Sequence[Any] | None) -> tuple[tuple[Any, ...], ...]:
    if target in DEVICELESS:
        # Nothing runs: each group is compiled by itself, as if it were alone.
        return tuple(tuple(target_devices(target, len(mesh.devices))) for mesh in program.meshes)
    if devices is None:
        devices = pipeline_devices(program, target)
    check_count(program, devices)
    return tuple(tuple(devices[device] for device in mesh.devices) for mesh in program.meshes)


def pipeline_devices(program: PipelineProgram, target: str) -> Sequence[Any]:
    """The target's first devices, as many as a program's meshes count."""
    return target_devices(target, _wanted(program))


def check_count(program: PipelineProgram, devices: Sequence[Any]) -> None:
    """RhinoError unless there are as many devices as a program's meshes count."""
    if len(devices) < _wanted(program):
        raise RhinoError(
            f"the pipeline's groups need {_wanted(program)} devices, and {len(devices)} were given",
            "give more devices, or plan for these",
        )


def _wanted(program: PipelineProgram) -> int:
    return 1 + max(device for mesh in program.meshes for device in mesh.devices)


def _check_devices(program: PipelineProgram, fragment: Fragment, signature: MainSignature) -> None:
    have = len(program.meshes[fragment.group].devices)
    if signature.devices != have:
        raise RhinoError(
            f"the {fragment.kind} of stage {fragment.stage} is written for {signature.devices} devices, "
            f"and its group has {have}"
        )


def _with_donors(module: str | bytes, donors: Sequence[int], fragment: Fragment) -> bytes:
    """The module with these arguments donated and no others. What takes their place is XLA's to find."""
    parsed = parse(module)
    with parsed.context:
        main = main_function(parsed)
        arguments = attribute_dicts(main, "arg_attrs")
        if len(arguments) != len(fragment.operands):
            raise RhinoError(
                f"the module of the {fragment.kind} of stage {fragment.stage} takes {len(arguments)} arguments, "
                f"and the program gives {len(fragment.operands)}"
            )
        for index, attributes in enumerate(arguments):
            for name in _DONATION:
                attributes.pop(name, None)
            if index in donors:
                attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in arguments])
        # jax names executables, and what it caches of them, by this: one program has one name.
        parsed.operation.attributes["sym_name"] = ir.StringAttr.get(fragment.kind)
    return to_bytecode(parsed)


def _text(bytecode: bytes) -> str:
    """What two equal programs have in common: all but the locations."""
    return str(parse(bytecode).operation.get_asm(enable_debug_info=False, large_elements_limit=None))


def _named(fragment: Fragment, function: Callable[..., T], *args: Any) -> T:
    try:
        return function(*args)
    except RhinoError as error:
        message = f"the {fragment.kind} of stage {fragment.stage}: {error.message}"
        raise RhinoError(message, error.remedy) from error
