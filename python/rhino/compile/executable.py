"""Compiles annotated modules with XLA and reads back what came out: memory and collectives per device.

Owns: `compile_module`, `compile_lowered`, `Executable`. Must not know: jax's private modules, how plans are made.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Unpack

import jax

from rhino.compile import _jax
from rhino.compile._jax_callbacks import Callbacks, with_callbacks
from rhino.compile.collectives import Collective, read_collectives
from rhino.compile.devices import target_devices
from rhino.compile.memory_analysis import MemoryAnalysis
from rhino.compile.module import MainSignature, read, refuse_callbacks
from rhino.compile.overlap import PROFILE, Compiler, overlapped
from rhino.compile.prepare import prepare, prepare_changed
from rhino.compile.target import DEVICELESS, check_target
from rhino.compile.timeline import Timeline, read_timeline
from rhino.errors import RhinoError, first_line
from rhino.ir.other_trips import IN_PLACE, OtherTrips
from rhino.machine import Cluster
from rhino.program.element_types import type_text
from rhino.request import PLAIN, CompileKeywords, CompileRequest
from rhino.xla import back_end


class Executable:
    """A compiled program: XLA's answer to an annotated module on `devices` devices of a target.

    Attributes:
      target: "cpu", "cuda" or the name of a deviceless GPU.
      devices: number of devices it was compiled for.
      seconds: wall time XLA took to compile.
      other_trips: whether gradients that loops make are summed over devices a trip later (rhino-sum-later), and which
        parameters they gather a trip earlier (rhino-gather-earlier).
      compiled: jax's own handle, for what is not wrapped here (cost_analysis, input_shardings, serialization).
    """

    def __init__(
        self,
        target: str,
        signature: MainSignature,
        seconds: float,
        compiled: jax.stages.Compiled,
        bytecode: bytes | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.target = target
        self.devices = signature.devices
        self.seconds = seconds
        self.compiled = compiled
        self.other_trips = IN_PLACE
        self._signature = signature
        self._is_wide = _jax.has_wide_types(signature)
        self._bytecode = bytecode
        self._options = options

    def __repr__(self) -> str:
        return f"Executable(target={self.target!r}, devices={self.devices}, seconds={self.seconds:.2f})"

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of one device, from XLA's buffer assignment."""
        return self._memory

    def collectives(self) -> tuple[Collective, ...]:
        """What one device sends in one execution, from the optimized HLO; loops count every iteration."""
        return self._collectives

    def hlo_text(self) -> str:
        """The optimized, partitioned program of one device."""
        return self._hlo

    def as_text(self) -> str:
        """`hlo_text()`, as `jax.stages.Compiled` spells it."""
        return self._hlo

    def cost_analysis(self) -> dict[str, float]:
        """What XLA counts in the program of one device, as of `jax.stages.Compiled`: "flops", "bytes accessed", ..."""
        return dict(self.compiled.cost_analysis() or {})

    def timeline(self, cluster: Cluster | str) -> Timeline:
        """The step in time, in the order in which XLA scheduled it (`rhino.compile.timeline.read_timeline`).

        Args:
          cluster: whose devices and links say how long things take, or its name.

        Raises:
          RhinoError: no such cluster, or it has fewer devices than the program.
        """
        return read_timeline(self._hlo, Cluster.load(cluster) if isinstance(cluster, str) else cluster)

    def to_json(self) -> dict[str, Any]:
        """The keys of `rhino compile --json`; bytes are integers, times are seconds."""
        return {
            "target": self.target,
            "devices": self.devices,
            **dataclasses.asdict(self._memory),
            "collectives": [collective.to_json() for collective in self._collectives],
            "summed_later": self.other_trips.sums_later,
            "gathered_earlier": self.other_trips.gathers_earlier,
            "seconds": self.seconds,
        }

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs it on global arrays; donated ones are consumed.

        From `compile_module`: the arguments of @main in order, and a tuple of its results. From `compile_lowered`: the
        pytrees of the function that was lowered.

        Raises:
          RhinoError: compiled for a GPU that is not here.
        """
        if self.target in DEVICELESS:
            raise RhinoError(
                f"this executable was compiled for {self.target} without a device and cannot run",
                "compile for cpu or cuda to run it",
            )
        with _jax.wide_types(self._is_wide):
            return self.compiled(*arguments, **keywords)

    def on(self, devices: Sequence[Any]) -> Executable:
        """The same program on other devices of the same kind, in the order of its mesh.

        Compiled again only where XLA cannot load it there as it is.
        """
        start = time.perf_counter()
        assert self._bytecode is not None, "of compile_module only"
        lowered = _jax.swap_module(_jax.lower_signature(self._signature, devices), self._bytecode)
        compiled = _jax.move_compiled(self.compiled, lowered)
        if compiled is None:
            again = _compile_once(lowered, self.target, self._signature, self._options, self._bytecode)
            again.other_trips = self.other_trips
            return again
        moved = Executable(self.target, self._signature, time.perf_counter() - start, compiled, self._bytecode)
        # What was loaded cannot always say what it is; it is the same program.
        moved.__dict__.update(_memory=self._memory, _hlo=self._hlo, other_trips=self.other_trips)
        return moved

    @cached_property
    def _memory(self) -> MemoryAnalysis:
        stats = self.compiled.memory_analysis()
        if stats is None:
            raise RhinoError(f"XLA reports no memory analysis for target {self.target}")
        argument, output = stats.argument_size_in_bytes, stats.output_size_in_bytes
        temp, alias = stats.temp_size_in_bytes, stats.alias_size_in_bytes
        return MemoryAnalysis(
            peak_bytes=argument + output + temp - alias,
            argument_bytes=argument,
            output_bytes=output,
            temp_bytes=temp,
            alias_bytes=alias,
            host_bytes=stats.host_argument_size_in_bytes,
        )

    @cached_property
    def _hlo(self) -> str:
        return self.compiled.as_text() or ""

    @cached_property
    def _collectives(self) -> tuple[Collective, ...]:
        return read_collectives(self._hlo)


_NO_TILES = "Couldn't find output tile sizes"  # seen with 197 tokens a picture in 0.10.2


def compile_module(
    module: str | bytes,
    target: str = "cpu",
    *,
    devices: int | None = None,
    hosts: int | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Unpack[CompileKeywords],
) -> Executable:
    """Compiles an annotated StableHLO module (MLIR text or bytecode).

    Args:
      target: a name in `rhino.compile.TARGETS`. Only `cpu` and `cuda` executables can be called.
      devices: how many devices; must be what the module's mesh says, which is the default. 1 without a mesh.
      hosts: how many hosts hold them, in equal runs of consecutive devices; default: what the module's
        `rhino.cluster` says, else eight GPUs to a host. Read by deviceless targets only.
      options: XLA compiler options, such as {"xla_gpu_enable_latency_hiding_scheduler": True}. They override Rhino's
        own for GPUs, which keep memory near what a plan predicts: collectives are combined up to 16 MiB, and
        the latency-hiding scheduler is off.
      overlap: a cluster, or its name, by whose times XLA puts collectives beside computing; the program is compiled
        twice for that (`rhino.compile.overlap`). On CPUs nothing runs beside computing.

    Raises:
      RhinoError: bad module, unknown target or cluster, device counts that differ, GPU compiler missing, or XLA
        refused.
    """
    return compile_as(module, CompileRequest.of(options, **how), target, devices=devices, hosts=hosts)


def compile_as(
    module: str | bytes,
    how: CompileRequest,
    target: str = "cpu",
    *,
    devices: int | None = None,
    hosts: int | None = None,
) -> Executable:
    """As `compile_module`, which see, of a request."""
    check_target(target)
    signature, bytecode = prepare_for(module, target)
    _check_devices(signature, devices)
    there = target_devices(target, signature.devices, hosts or signature.hosts)
    refuse_callbacks(bytecode)
    lowered = _jax.lower_signature(signature, there)
    changed = partial(prepare_changed, module, algorithms=_algorithms(target))
    return _compile(_jax.swap_module(lowered, bytecode), target, signature, how, bytecode, changed)


def prepare_for(module: str | bytes, target: str) -> tuple[MainSignature, bytes]:
    """The module as XLA takes it for a target; see `rhino.compile.prepare`."""
    return prepare(module, _algorithms(target))


def _algorithms(target: str) -> bool:
    """Whether a target's dots may say their algorithm. `XLA: dot-algorithms-refused`."""
    return not back_end(target).refuses_algorithms


def compile_prepared(
    signature: MainSignature,
    bytecode: bytes,
    target: str,
    devices: Sequence[Any],
    how: CompileRequest = PLAIN,
    callbacks: Callbacks | None = None,
) -> Executable:
    """Compiles what `prepare_for` returned for these devices, in the order of its mesh. Raises as `compile_module`.

    Args:
      callbacks: what the module's calls of Python functions refer to, if it has any.
    """
    if callbacks is None:
        refuse_callbacks(bytecode)
    lowered = _jax.swap_module(_jax.lower_signature(signature, devices), bytecode)
    if callbacks is not None:
        lowered = with_callbacks(lowered, callbacks)
    return _compile(lowered, check_target(target), signature, how, bytecode)


def compile_lowered(
    lowered: jax.stages.Lowered,
    module: str | bytes,
    *,
    target: str | None = None,
    how: CompileRequest = PLAIN,
) -> Executable:
    """Compiles `module` in place of the program of `lowered`, and keeps everything else of it.

    The executable is called like the function that `lowered` came from: its pytrees, its donation, its callbacks.

    Args:
      lowered: of the user's function, jitted with the plan's in_shardings and out_shardings over real or
        compile-only devices.
      module: the annotated module of the same function.
      target: what to write into `Executable.target`; default: the devices' platform.

    Raises:
      RhinoError: the module's @main takes or returns something else than `lowered` does, or is sharded differently.
    """
    signature, bytecode = prepare(module)
    _check_same(read(_jax.lowered_module(lowered)), signature)
    if target is None:
        target = "cpu" if _jax.lowered_devices(lowered)[0].platform == "cpu" else "cuda"
    changed = partial(prepare_changed, module)
    return _compile(_jax.swap_module(lowered, bytecode), check_target(target), signature, how, changed=changed)


def _compile(
    lowered: jax.stages.Lowered,
    target: str,
    signature: MainSignature,
    how: CompileRequest,
    bytecode: bytes | None = None,
    changed: Callable[[OtherTrips], tuple[OtherTrips, bytes | None]] | None = None,
) -> Executable:
    """Compiles a program as asked; `changed` makes one whose loops do things in other trips."""
    times = how.times
    if times is None or not back_end(target).asynchronous or signature.devices == 1:
        return _compile_once(lowered, target, signature, how.options, bytecode)
    start = time.perf_counter()

    def compile_with(chosen: Mapping[str, Any]) -> Executable:
        return _compile_once(lowered, target, signature, chosen, bytecode)

    def compiler_of(trips: OtherTrips) -> tuple[OtherTrips, Compiler]:
        there, module = changed(trips) if changed is not None else (IN_PLACE, None)
        if module is None:
            return there, compile_with
        program, kept = _jax.swap_module(lowered, module), None if bytecode is None else module

        def compile_changed(chosen: Mapping[str, Any]) -> Executable:
            made = _compile_once(program, target, signature, chosen, kept)
            made.other_trips = there
            return made

        return there, compile_changed

    found = overlapped(compile_with, times, how.options, compiler_of)
    found.seconds = time.perf_counter() - start
    return found


def _compile_once(
    lowered: jax.stages.Lowered,
    target: str,
    signature: MainSignature,
    options: Mapping[str, Any],
    bytecode: bytes | None,
) -> Executable:
    start = time.perf_counter()
    chosen = {**back_end(target).options, **options}
    try:
        compiled = _jax_compile(lowered, chosen)
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if "ptxas" in text or "libdevice" in text:
            raise RhinoError(
                f"XLA's GPU compiler needs NVIDIA's ptxas and libdevice: {first_line(error)}",
                "pip install 'rhino-jax[gpu-aot]', or install the CUDA toolkit",
            ) from None
        raise RhinoError(f"XLA cannot compile the module for {target}: {first_line(error)}") from error
    kept = {name: value for name, value in options.items() if name != PROFILE}
    return Executable(target, signature, time.perf_counter() - start, compiled, bytecode, kept)


def _jax_compile(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
    try:
        return lowered.compile(options or None)
    except jax.errors.JaxRuntimeError as error:
        if _NO_TILES not in str(error) or "xla_gpu_enable_triton_gemm" in options:
            raise
    # Without a device XLA cannot time its kernels, and takes a Triton one even where that has no valid tiling.
    return lowered.compile({**options, "xla_gpu_enable_triton_gemm": False})


def _check_devices(signature: MainSignature, devices: int | None) -> None:
    if devices is None or devices == signature.devices:
        return
    if not signature.axes:
        raise RhinoError(
            f"the module has no mesh, so it cannot be compiled for {devices} devices",
            "annotate it first: rhino plan FILE.mlir --cluster C -o OUT.mlir",
        )
    mesh = " x ".join(f"{name}={size}" for name, size in signature.axes)
    raise RhinoError(
        f"the module's mesh ({mesh}) has {signature.devices} devices, and {devices} were asked for",
        f"compile for {signature.devices}, or plan for a cluster of {devices}",
    )


def _check_same(lowered: MainSignature, module: MainSignature) -> None:
    """The module must have the calling convention jax will use for the lowered function."""
    if lowered.devices != module.devices:
        raise RhinoError(f"the function is lowered for {lowered.devices} devices, the module for {module.devices}")
    for what, ours, theirs in (
        ("argument", module.arguments, lowered.arguments),
        ("result", module.results, lowered.results),
    ):
        _check_tensors(what, ours, theirs)


def _check_tensors(what: str, module: Sequence[Any], lowered: Sequence[Any]) -> None:
    if len(module) != len(lowered):
        raise RhinoError(f"@main of the module has {len(module)} {what}s, the lowered function {len(lowered)}")
    for index, (ours, theirs) in enumerate(zip(module, lowered, strict=True)):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise RhinoError(
                f"{what} {index} is {type_text(ours.dtype, ours.shape)} in the module and "
                f"{type_text(theirs.dtype, theirs.shape)} in the lowered function"
            )
        # jax reads a sharding it was not given from the executable, so only a given one can disagree.
        if theirs.sharding is not None and ours.sharding is not None and ours.sharding != theirs.sharding:
            raise RhinoError(
                f"{what} {index} is sharded {ours.sharding} in the module and {theirs.sharding} in the lowered function"
            )
