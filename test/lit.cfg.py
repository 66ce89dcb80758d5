"""lit's configuration: FileCheck tests in test/**/*.mlir, run with `lit test` from an environment with rhino[test].

Parameters: `--param filecheck=PATH` checks with another FileCheck, such as LLVM's, instead of PyPI's filecheck.
"""

# ruff: noqa: F821  (lit defines config and lit_config)

import os
import shutil
import sys
from pathlib import Path

import lit.formats

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

config.name = "rhino"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["python", "Inputs", "Output", "lit.cfg.py"]
config.test_source_root = str(ROOT / "test")
# Outside the source tree, and one folder per interpreter, so that two environments do not share outputs.
config.test_exec_root = str(ROOT / "out" / "lit" / f"python{sys.version_info[0]}.{sys.version_info[1]}")

filecheck = lit_config.params.get("filecheck") or shutil.which("filecheck", path=str(BIN)) or shutil.which("filecheck")
if filecheck is None:
    lit_config.fatal("no filecheck: pip install 'rhino-jax[test]', or give --param filecheck=PATH")

# A command at the start of a word only: options such as --rhino-verify and file names stay as they are.
config.substitutions += [
    (r"(?<![\w./%-])rhino-opt(?![\w.-])", f"{sys.executable} -m rhino.cli.opt"),
    (r"(?<![\w./%-])rhino(?= (plan|compile|simulate|reshard|cluster)\b)", f"{sys.executable} -m rhino.cli.main"),
    (r"(?<![\w./%-])filecheck(?![\w.-])", filecheck),
    (r"%python", sys.executable),
]
config.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
config.environment["JAX_PLATFORMS"] = "cpu"
