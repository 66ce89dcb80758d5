"""lit's configuration: FileCheck tests in test/**/*.mlir, run with `lit test` from an environment with rhino[test].

Parameters: `--param filecheck=PATH` checks with another FileCheck, such as LLVM's, instead of PyPI's filecheck.
"""

# ruff: noqa: F821  (lit defines config and lit_config)

import os
import shutil
import sys
import tempfile
from pathlib import Path

import lit.formats

from rhino.passes.registry import TABLE

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "test" / "python"))
import warm  # noqa: E402

config.name = "rhino"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["python", "Inputs", "Output", "lit.cfg.py"]
config.test_source_root = str(ROOT / "test")
# Outside the source tree, and one folder per interpreter, so that two environments do not share outputs.
config.test_exec_root = str(ROOT / "out" / "lit" / f"python{sys.version_info[0]}.{sys.version_info[1]}")

config.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
config.environment["JAX_PLATFORMS"] = "cpu"

# A command imports for half a second, and then works for a twentieth of one. So it is a fork of a process that has
# imported what any of them needs; with an environment that Python reads at its start, it is a new process all the same.
passes = dict.fromkeys(row.partition(":")[0] for row in TABLE.values())
server = warm.serve(
    tempfile.mkdtemp(prefix="rhino-"),
    ["rhino.cli.opt", "rhino.cli.opt_reports", "rhino.dialect.context", *passes, "filecheck.main"],
    config.environment,
)
python = f"{sys.executable} -IS {ROOT / 'test/python/warm.py'} {server}"

filecheck = lit_config.params.get("filecheck")
if filecheck is None:
    script = shutil.which("filecheck", path=str(BIN)) or shutil.which("filecheck")
    if script is None:
        lit_config.fatal("no filecheck: pip install 'rhino-jax[test]', or give --param filecheck=PATH")
    filecheck = f"{python} {script}"

# A command at the start of a word only: options such as --rhino-verify and file names stay as they are.
config.substitutions += [
    (r"(?<![\w./%-])rhino-opt(?![\w.-])", f"{python} -m rhino.cli.opt"),
    (r"(?<![\w./%-])rhino(?= (plan|compile|simulate|reshard|cluster)\b)", f"{python} -m rhino.cli.main"),
    (r"(?<![\w./%-])filecheck(?![\w.-])", filecheck),
    (r"%python", sys.executable),
]
