"""Eight virtual CPU devices for every test, set before anything imports jax; the GPU compiler, where it is needed."""

from __future__ import annotations

import gc
import os

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

# A worker comes to hold millions of objects; looking at all of them again and again takes a twentieth of the time.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def gpu_compiler() -> None:
    """Skips where the GPU wheels of this jax, which `tools/test` installs, are not there."""
    from rhino.compile import _jax
    from rhino.errors import RhinoError

    try:
        _jax.check_gpu_wheels()
    except RhinoError as error:
        pytest.skip(str(error))
