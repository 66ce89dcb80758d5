"""Compiles the programs of `rhino.xla`'s probes, and says whether a behaviour of XLA shows.

Owns how they are compiled: as they are, without what `rhino.compile.prepare` does for XLA's sake. Knows no behaviour.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

import jaxlib

from rhino.compile._jax import prefer_cpu
from rhino.compile.devices import target_devices
from rhino.compile.executable import Executable, compile_prepared
from rhino.compile.module import parse, read
from rhino.dialect.context import to_bytecode
from rhino.errors import RhinoError
from rhino.request import CompileRequest
from rhino.xla.behaviour import Behaviour, Probe
from rhino.xla.catalogue import behaviour

# As the catalogue says and seen, as it says and not there, otherwise than it says, without a probe.
Status = Literal["shows", "absent", "changed", "not probed"]

_BEGUN = "compiling"
_CHILD = "import rhino.compile.probe; rhino.compile.probe.main"


def version() -> str:
    """Of jaxlib, which XLA is in."""
    return str(jaxlib.__version__)


def status(found: Behaviour, target: str) -> Status:
    """What became of a behaviour on a target with this jaxlib. Raises RhinoError as `shows`."""
    if found.probe is None:
        return "not probed"
    if shows(found.name, found.probe, target) != found.holds(target, version()):
        return "changed"
    return "shows" if found.holds(target, version()) else "absent"


def shows(name: str, probe: Probe, target: str) -> bool:
    """Whether a probe shows the behaviour of this name on a target.

    Raises:
      RhinoError: the GPU compiler is missing, or XLA refuses a program that the behaviour says it takes.
    """
    if probe.fatal:
        return _ends(name, probe, target)
    try:
        compiled = compile_as_is(probe, target)
    except RhinoError as error:
        if probe.refused and probe.refused in str(error):
            return True
        raise
    return not probe.refused and probe.shows(compiled)


def _ends(name: str, probe: Probe, target: str) -> bool:
    """Whether XLA ends the process that compiles a probe, or refuses it as it says."""
    program = f"{_CHILD}({name!r}, {target!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=300, text=True)
    if _BEGUN not in done.stdout:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RhinoError(f"the probe of {name} did not begin: {reason}")
    refused = bool(probe.refused) and probe.refused in done.stderr
    if done.returncode > 0 and not refused:
        raise RhinoError(f"the probe of {name} failed otherwise: {done.stderr.strip().splitlines()[-1]}")
    return done.returncode < 0 or refused


def compile_as_is(probe: Probe, target: str) -> Executable:
    """A probe's program, as XLA takes it from one who says all by himself. Raises RhinoError as `compile_module`."""
    parsed = parse(probe.text)
    signature = read(parsed)
    devices = target_devices(target, signature.devices)
    if probe.fatal:
        print(_BEGUN, flush=True)
    return compile_prepared(signature, to_bytecode(parsed), target, devices, CompileRequest(probe.options))


def main(name: str, target: str) -> None:
    """Compiles the probe of a behaviour in this process, which XLA may end."""
    prefer_cpu()
    probe = behaviour(name).probe
    assert probe is not None
    compile_as_is(probe, target)
