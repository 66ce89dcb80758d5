"""Eight virtual CPU devices for every test, set before anything imports jax."""

from __future__ import annotations

import gc
import os

os.environ["JAX_PLATFORMS"] = "cpu"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

# A worker comes to hold millions of objects; looking at all of them again and again takes a twentieth of the time.
gc.set_threshold(100_000, 20, 100)
