"""The jax devices that a target compiles for."""

from __future__ import annotations

from typing import Any

from rhino.compile import _jax
from rhino.compile.target import check_target, gpu_target_config
from rhino.errors import RhinoError

_DEVICES_PER_HOST = 8  # of an unnamed GPU host; a module with `rhino.cluster` says it itself


def target_devices(target: str, count: int, hosts: int | None = None) -> list[Any]:
    """The jax devices a target compiles for: virtual CPUs, local GPUs, or compile-only GPUs.

    Deviceless GPUs stand on `hosts` hosts in equal runs; default: eight to a host.
    """
    check_target(target)
    if target == "cpu":
        return _jax.cpu_devices(count)
    if target == "cuda":
        return _jax.cuda_devices(count)
    if hosts is None:
        hosts = max(1, count // _DEVICES_PER_HOST) if count % _DEVICES_PER_HOST == 0 else 1
    if count % hosts:
        raise RhinoError(f"{count} devices cannot be split evenly over {hosts} hosts", "give hosts that divide them")
    _jax.check_gpu_wheels()
    return _jax.compile_only_gpus(gpu_target_config(target), hosts, count // hosts)
