"""The hardware that a module can be compiled for, by name.

Owns: the list of targets and the text of XLA's description of each GPU. Must not know: jax, modules, executables.
"""

from __future__ import annotations

from importlib import resources

from rhino.errors import RhinoError

# GPUs that need no GPU to compile for; each has targets/NAME.txtpb beside this file.
DEVICELESS = ("v100", "a100", "h100", "h200", "b200")
TARGETS = ("cpu", "cuda", *DEVICELESS)


def check_target(name: str) -> str:
    """Returns `name`, or raises RhinoError with the known names."""
    if name not in TARGETS:
        raise RhinoError(f"unknown target {name!r}", f"known targets: {', '.join(TARGETS)}")
    return name


def gpu_target_config(name: str) -> str:
    """XLA's GpuTargetConfigProto text of one of `DEVICELESS`."""
    if name not in DEVICELESS:
        raise RhinoError(f"{name!r} is no deviceless target", f"known: {', '.join(DEVICELESS)}")
    return resources.files("rhino.compile").joinpath("targets", f"{name}.txtpb").read_text(encoding="utf-8")
