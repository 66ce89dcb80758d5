"""Eight virtual CPU devices for every test, and XLA quick to compile, before anything imports jax; the GPU compiler.

Owns how XLA compiles in tests, quickly or with `--xla-defaults` as it does for users, and the order of the files.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
from collections import Counter

import pytest

# Compiling was two thirds of the suite's time. Without LLVM's optimizations it is half of that; without the emitters of
# fusions by way of MLIR, which jaxlib 0.12 cannot do without, a sixth. What XLA does before, splitting a program and
# choosing its collectives, is the same.
QUICK_XLA = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "true"}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK_XLA["xla_cpu_use_fusion_emitters"] = "false"

os.environ["JAX_PLATFORMS"] = "cpu"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

# Files of few tests that take a while each.
EARLY = {
    f"test_{name}"
    for name in "docs scripts messages_here microbatches runtime_processes parallelized distributed_calibrate "
    "fragments_of_models delay_random write_pipeline breakdown".split()
}

# A worker comes to hold millions of objects; looking at all of them again and again takes a twentieth of the time.
gc.set_threshold(100_000, 20, 100)


def pytest_sessionfinish() -> None:
    """pytest looks at all objects several times before it ends, ten seconds of each worker: at none of these."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--xla-defaults", action="store_true", help="XLA compiles as it does for users, not quickly")


def pytest_configure(config: pytest.Config) -> None:
    """What XLA_FLAGS has already, by the user or by the process that started this worker, stays."""
    flags = os.environ["XLA_FLAGS"]
    if not config.getoption("--xla-defaults"):
        quick = [f"--{name}={value}" for name, value in QUICK_XLA.items() if name not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *quick])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those with many: a long one that began last would leave a worker idle."""
    count = Counter(item.path for item in items)
    slow = {
        item.path for item in items if any(map(item.get_closest_marker, ("slow", "long"))) or item.path.stem in EARLY
    }
    items.sort(key=lambda item: (item.path not in slow, -count[item.path]))


@pytest.fixture(scope="session")
def gpu_compiler() -> None:
    """XLA's GPU compiler: tests of it fail where it is not installed, or is that of another jax."""
    from rhino.compile import _jax

    if importlib.util.find_spec("jax_plugins.xla_cuda13") is None:
        remedy = "on Linux, pip install -e '.[test,gpu-aot]'"
        pytest.fail(f"XLA's GPU compiler is not installed: {remedy}", pytrace=False)
    _jax.check_gpu_wheels()
