"""The hardware that a module can be compiled for, by name.

Owns: the list of targets and the text of XLA's description of each GPU. Must not know: jax, modules, executables.
"""

from __future__ import annotations

import re
from importlib import resources

from rhino.errors import RhinoError, nearest

# GPUs that need no GPU to compile for; each has targets/NAME.txtpb beside this file.
DEVICELESS = ("v100", "a100", "h100", "h200", "b200")
TARGETS = ("cpu", "cuda", *DEVICELESS)


def check_target(name: str) -> str:
    """Returns `name`, or raises RhinoError with the known names."""
    if name not in TARGETS:
        near = nearest(name, TARGETS)
        known = f"known targets: {', '.join(TARGETS)}"
        raise RhinoError(f"unknown target {name!r}", f"did you mean {near}? {known}" if near else known)
    return name


def gpu_target_config(name: str) -> str:
    """XLA's GpuTargetConfigProto text of one of `DEVICELESS`."""
    if name not in DEVICELESS:
        raise RhinoError(f"{name!r} is no deviceless target", f"known: {', '.join(DEVICELESS)}")
    return resources.files("rhino.compile").joinpath("targets", f"{name}.txtpb").read_text(encoding="utf-8")


def gpu_versions(name: str) -> tuple[tuple[int, int], int]:
    """Compute capability of one of `DEVICELESS`, and the cuDNN that XLA compiles for, as cuDNN numbers its versions."""
    text = gpu_target_config(name)

    def number(block: str, key: str) -> int:
        inside = re.search(block + r"\s*\{([^{}]*)\}", text)
        found = re.search(rf"\b{key}:\s*(\d+)", inside[1]) if inside else None
        return int(found[1]) if found else 0

    capability = number("cuda_compute_capability", "major"), number("cuda_compute_capability", "minor")
    major, minor, patch = (number("dnn_version_info", key) for key in ("major", "minor", "patch"))
    return capability, major * 10000 + minor * 100 + patch


def gpu_description(name: str) -> tuple[str, int]:
    """What a GPU of `DEVICELESS` calls itself, "NVIDIA H100 80GB HBM3", and its multiprocessors."""
    text = gpu_target_config(name)
    kind, cores = re.search(r'device_description_str: "([^"]*)"', text), re.search(r"\bcore_count: (\d+)", text)
    return (kind[1] if kind else name), (int(cores[1]) if cores else 0)
