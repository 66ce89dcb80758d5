"""Runs a pipelined step on the devices of one process or of several: a module in fragments becomes an executable.

Owns `build`, and compiling, dispatching, placing and measuring. Must not know: how stages and schedules are chosen.
"""

from __future__ import annotations

from rhino.lazy import lazily

# Loaded on first use, as in rhino.compile: what reads a plan must not start jax.
_EXPORTS = {
    "GroupMemory": "rhino.runtime.memory",
    "PipelineExecutable": "rhino.runtime.executor",
    "PipelineMemory": "rhino.runtime.memory",
    "Profile": "rhino.runtime.profile",
    "Script": "rhino.runtime.script",
    "StagedArray": "rhino.runtime.staged",
    "build": "rhino.runtime.building",
    "build_program": "rhino.runtime.building",
    "make_script": "rhino.runtime.script",
}
__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
