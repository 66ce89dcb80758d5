"""What `rhino.distributed.initialize` refuses by itself, and what it does for one process."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import jax
import pytest

START = "import rhino\nstart = rhino.distributed.initialize\n"


def run(program: str, **env: str) -> str:
    """The last line that a program writes to stderr, or its output if it ends well."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_", "JAX_COORD"))}
    done = subprocess.run(
        [sys.executable, "-c", START + program],
        env={**clean, "JAX_PLATFORMS": "cpu", **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stderr.strip().splitlines()[-1] if done.returncode else done.stdout


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            "import jax\njax.devices()\nstart('127.0.0.1:9999', 2, 0)",
            "jax has started its devices already, and cannot take in those of other processes any more; "
            "call rhino.distributed.initialize() before the first use of jax",
        ),
        ("start(num_processes=1)\nstart(num_processes=1)", "rhino.distributed.initialize was called twice"),
        ("start('somewhere', 2, 0)", "coordinator_address 'somewhere' is not host:port"),
        ("start('127.0.0.1:9999', 2, 2)", "process_id 2 is not one of 2 processes; number them from 0"),
        ("start()", "coordinator_address, num_processes, process_id not given, and no launcher that jax knows"),
        ("start('127.0.0.1:9', 2, 1, timeout_s=1)", "process 1 cannot reach process 0 at 127.0.0.1:9 within 1 s: "),
    ],
)
def test_is_refused(program: str, error: str) -> None:
    assert f"rhino.errors.RhinoError: {error}" in run(program)


def test_a_taken_port_is_named() -> None:
    program = (
        "import socket\nwith socket.create_server(('', 0)) as taken:\n"
        "    start(f'127.0.0.1:{taken.getsockname()[1]}', 2, 0)"
    )
    assert "RhinoError: process 0 cannot listen on port" in run(program)


def test_one_process_is_no_job() -> None:
    program = "start(num_processes=1)\nimport jax\nprint(jax.process_count(), rhino.distributed.current_job())"
    assert run(program).split() == ["1", "None"]


@pytest.mark.skipif("mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters, reason="jax has it")
def test_certificates_are_refused_by_a_jax_without_them() -> None:
    error = f"RhinoError: jax {jax.__version__} does not take mtls_cert_file; mutual TLS comes with jax 0.12"
    assert error in run("start('127.0.0.1:9', 2, 0, mtls_cert_file='a.pem')")
