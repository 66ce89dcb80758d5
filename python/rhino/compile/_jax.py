"""Jax's private modules, each use with its reason; only this file and its neighbours `_jax_*.py` may use them.

Owns: devices (virtual, real, compile-only), a `Lowered` for a given signature, swapping a `Lowered`'s module, and
making a class an array type of jax.
Must not know: how a module is read or what is done with the executable. Private uses were tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax._src import compiler, core, dtypes
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from rhino.compile.module import MainSignature, TensorSpec
from rhino.errors import RhinoError, first_line
from rhino.program.element_types import numpy_name

_GPU_WHEELS_REMEDY = "pip install 'rhino-jax[gpu-aot]'"
_GPU_PLUGINS = {"jax_plugins.xla_cuda13": "jax-cuda13-plugin", "jax_plugins.xla_cuda12": "jax-cuda12-plugin"}


# --- devices --------------------------------------------------------------------------------------------------------


def ensure_cpu_devices(count: int) -> None:
    """Makes at least `count` CPU devices exist; only possible before jax's first operation in the process.

    Raises:
      RhinoError: jax is already initialised with fewer.
    """
    asked = max(jax.config.jax_num_cpu_devices, _flag_cpu_devices())
    if asked < count:
        # jax's own validator raises RuntimeError once the backends exist; the count is checked below.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    have = len(_devices("cpu"))
    if have < count:
        raise RhinoError(
            f"{count} CPU devices are needed, and this process has {have}",
            f"call rhino.compile.ensure_cpu_devices({count}) before the first use of jax, or set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}",
        )


def prefer_cpu() -> None:
    """Keeps jax from starting accelerators in a process that only compiles; no effect if the user chose platforms."""
    if not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")


def quiet_plugins() -> None:
    """Keeps jax from logging a traceback per plugin that cannot start; what is missing is said by our own error."""
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.CRITICAL)


def ready_for(target: str) -> None:
    """As `quiet_plugins` where devices of this process are compiled for ("cuda"), else as `prefer_cpu`."""
    if target == "cuda":
        quiet_plugins()
    else:
        prefer_cpu()


def starts_cpu() -> bool:
    """Whether jax's default backend will be the CPU: asked for, or nothing else is installed."""
    asked = jax.config.jax_platforms
    return str(asked).split(",")[0] == "cpu" if asked else not any(map(_installed, _GPU_PLUGINS))


def cpu_devices(count: int) -> list[Any]:
    """The first `count` virtual CPU devices."""
    ensure_cpu_devices(count)
    return _devices("cpu")[:count]


def cuda_devices(count: int) -> list[Any]:
    """The first `count` GPUs of the machine (or of the job, when jax.distributed runs)."""
    devices = _devices("cuda")
    if len(devices) < count:
        raise RhinoError(
            f"the module is written for {count} devices, and {len(devices)} CUDA devices are here",
            "plan for the devices you have, or compile for a deviceless target such as h100",
        )
    return devices[:count]


def compile_only_gpus(target_config: str, hosts: int, devices_per_host: int) -> list[Any]:
    """Devices that XLA's GPU compiler can compile for although no GPU is there, host by host.

    Args:
      target_config: GpuTargetConfigProto text.

    Raises:
      RhinoError: the wheels with the GPU compiler are missing, of another version, or cannot be loaded.
    """
    arguments = {"target_config": target_config, "topology": f"1x{hosts}x{devices_per_host}"}
    try:
        return list(topologies.get_topology_desc("", "cuda", **arguments).devices)
    except NotImplementedError:
        # Either no plugin is installed, or jax tried it without a driver and gave it up; a second registration that
        # skips the check of the CUDA libraries (which compiling does not use) brings it back.
        _register_gpu_plugin()
    try:
        return list(topologies.get_topology_desc("", "cuda", **arguments).devices)
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        raise RhinoError(f"XLA's GPU compiler cannot be loaded: {first_line(error)}", _GPU_WHEELS_REMEDY) from None


def check_gpu_wheels() -> None:
    """Raises RhinoError unless the GPU compiler wheels are installed and were built for this jax."""
    for module, distribution in _GPU_PLUGINS.items():
        if _installed(module):
            version = metadata.version(distribution)
            if _release(version) != _release(jax.__version__):
                raise RhinoError(
                    f"{distribution} {version} does not match jax {jax.__version__}",
                    f"pip install '{distribution}=={jax.__version__}'",
                )
            return
    raise RhinoError("XLA's GPU compiler is not installed", _GPU_WHEELS_REMEDY)


def _devices(platform: str) -> list[Any]:
    try:
        return list(jax.devices(platform))
    except RuntimeError as error:
        remedy = (
            "unset JAX_PLATFORMS or add cpu to it" if platform == "cpu" else "compile for h100 or another known GPU"
        )
        raise RhinoError(f"jax has no {platform} devices here: {first_line(error)}", remedy) from None


def _flag_cpu_devices() -> int:
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else 1


def _register_gpu_plugin() -> None:
    check_gpu_wheels()
    name = next(module for module in _GPU_PLUGINS if _installed(module))
    skip = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    before = os.environ.get(skip)
    os.environ[skip] = "1"
    try:
        importlib.import_module(name).initialize()
    except Exception as error:  # a plugin may fail in any way when its libraries do not load
        raise RhinoError(f"{name} cannot be loaded: {first_line(error)}", _GPU_WHEELS_REMEDY) from None
    finally:
        if before is None:
            del os.environ[skip]
        else:
            os.environ[skip] = before


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:3])


# --- lowering -------------------------------------------------------------------------------------------------------


def lower_signature(signature: MainSignature, devices: Sequence[Any]) -> jax.stages.Lowered:
    """A `Lowered` of an empty function that takes and returns what the signature says, over these devices.

    It carries everything jax needs to compile and call (avals, shardings, donation) except the program.
    """
    mesh = _mesh(signature, devices)
    replicated = NamedSharding(mesh, PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(spec.shape, _dtype(spec)) for spec in signature.arguments]

    def main(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(spec.shape, _dtype(spec)) for spec in signature.results)

    # On one device there is nothing to leave to XLA, which would name the same place otherwise than arguments do.
    unspecified = None if signature.axes else replicated
    jitted = jax.jit(
        main,
        in_shardings=tuple(_sharding(mesh, spec, replicated) for spec in signature.arguments),
        out_shardings=tuple(_sharding(mesh, spec, unspecified) for spec in signature.results),
        donate_argnums=signature.donated,
        keep_unused=True,  # the signature is flat and fixed: no argument may be dropped
    )
    with wide_types(has_wide_types(signature)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "some donated buffers were not usable": the empty function uses none
        return jitted.lower(*arguments)


def lowered_module(lowered: jax.stages.Lowered) -> ir.Module:
    """The module a `Lowered` would compile."""
    return lowered.compiler_ir("stablehlo")


def swap_module(lowered: jax.stages.Lowered, bytecode: bytes) -> jax.stages.Lowered:
    """The same `Lowered` with another program; the one given stays as it is.

    Private: `Lowered._lowering` and `MeshComputation._hlo`/`_executable`, because jax offers no way to compile a
    module together with a function's avals, shardings, callbacks and calling convention.
    """
    computation = copy.copy(lowered._lowering)
    with lowered_module(lowered).context:
        computation._hlo = ir.Module.parse(bytecode)
    computation._executable = None
    swapped = copy.copy(lowered)
    swapped._lowering = computation
    return swapped


def move_compiled(compiled: jax.stages.Compiled, lowered: jax.stages.Lowered) -> jax.stages.Compiled | None:
    """The same program on the devices of `lowered`, without compiling it again; None where that is not possible.

    Private: the executable inside `Compiled`. `jax.experimental.serialize_executable` loads only on the devices that
    were compiled for, because it passes no compile options, and those hold the device assignment.
    """
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is None or not all(isinstance(s, NamedSharding) for s in unloaded.output_shardings):
        return None
    devices = lowered_devices(lowered)
    client = devices[0].client
    grid = np.array([[device.id for device in devices]])
    options = compiler.get_compile_options(num_replicas=1, num_partitions=len(devices), device_assignment=grid)
    try:
        serialized = client.serialize_executable(unloaded.xla_executable)
        loaded = client.deserialize_executable(serialized, lowered._lowering._device_list, options)
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        # The caller compiles again, which says what is wrong if that is more than that XLA cannot store it.
        return None
    there = dataclasses.replace(
        unloaded,
        xla_executable=loaded,
        device_list=lowered._lowering._device_list,
        input_shardings=lowered._lowering.compile_args["in_shardings"],
        output_shardings=[move_sharding(sharding, devices) for sharding in unloaded.output_shardings],
    )
    return jax.stages.Compiled(there.load(), [], lowered.args_info, lowered.out_tree, no_kwargs=True)


def move_sharding(sharding: NamedSharding, devices: Sequence[Any]) -> NamedSharding:
    """The same sharding over other devices, given in the order of the mesh; there must be as many."""
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    mesh = Mesh(grid.reshape(sharding.mesh.devices.shape), sharding.mesh.axis_names)
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def lowered_devices(lowered: jax.stages.Lowered) -> list[Any]:
    """The devices a `Lowered` compiles for, in the order of its device assignment.

    Private: `MeshComputation._device_list`; the public shardings do not say it for a function without arguments.
    """
    return list(lowered._lowering._device_list)


def wide_types(wanted: bool) -> contextlib.AbstractContextManager[object]:
    """Turns 64-bit types on where they are wanted, or jax would silently narrow them."""
    return jax.enable_x64(True) if wanted else contextlib.nullcontext()


def has_wide_types(signature: MainSignature) -> bool:
    """Whether the signature has 64-bit types."""
    tensors = signature.arguments + signature.results
    return any(t.dtype in ("f64", "i64", "ui64", "complex<f64>") for t in tensors)


def register_array_type(cls: type, convert: Callable[[Any], jax.Array]) -> None:
    """Lets jax take instances of `cls` wherever it takes arrays, `jax.jit` and `jax.device_put` included.

    Private: the three tables in which jax itself enters its array types. `__jax_array__` alone is refused by whatever
    is jitted, half of `jax.numpy` included, and a pytree node would show its insides to `jax.tree.map`.
    """

    def place(values: Any, shardings: Any, layouts: Any, copy_semantics: Any) -> Any:
        return pxla.shard_args(shardings, layouts, copy_semantics, [convert(value) for value in values])

    core.pytype_aval_mappings[cls] = lambda value: value.aval
    dtypes.register_canonicalize_value_handler(cls, convert)
    pxla.shard_arg_handlers[cls] = place


def key_implementation(dtype: Any) -> Any:
    """What `jax.random.wrap_key_data` must be told to make keys of this dtype; jax says it only of keys at hand."""
    return dtype._impl.name


def weakly_typed(array: jax.Array) -> jax.Array:
    """The same array with a type that gives way to others, as jax keeps those made of Python numbers.

    Private: the constructor of arrays. Every public one that takes a sharding makes strong types.
    """
    parts = [shard.data for shard in array.addressable_shards]
    aval = array.aval.update(weak_type=True)
    return ArrayImpl(aval, array.sharding, parts, committed=True)


def _mesh(signature: MainSignature, devices: Sequence[Any]) -> Mesh:
    axes = signature.axes or (("device", 1),)
    grid = np.empty(math.prod(size for _, size in axes), dtype=object)
    for position, device in enumerate(signature.device_ids):
        grid[position] = devices[device]
    return Mesh(grid.reshape([size for _, size in axes]), tuple(name for name, _ in axes))


def _sharding(mesh: Mesh, spec: TensorSpec, otherwise: NamedSharding | None) -> NamedSharding | None:
    if spec.sharding is None and not spec.memory:
        return otherwise
    axes = (axes or None for axes in spec.sharding or ())
    return NamedSharding(mesh, PartitionSpec(*axes), memory_kind=spec.memory or None)


def _dtype(spec: TensorSpec) -> Any:
    return numpy_dtype(spec.dtype)


def numpy_dtype(element: str) -> np.dtype[Any]:
    """The dtype of an MLIR element type. Raises RhinoError if jax has none."""
    name = numpy_name(element)
    if name is None:
        raise RhinoError(f"jax has no dtype for {element}")
    return np.dtype(getattr(ml_dtypes, name, name))
