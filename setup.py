"""Finds the packages: setuptools can look in one folder only, and `rhino` lies in three. All else is in pyproject.toml.

A new folder with an `__init__.py` is installed by being there; `tools/wheel` checks that the wheel has every file.
"""

from __future__ import annotations

from setuptools import find_packages, setup

# Imported as `rhino.passes` and `rhino.dialect`; see [tool.setuptools.package-dir].
BESIDE = ("passes", "dialect")

setup(
    packages=[
        *find_packages("python"),
        *(f"rhino.{name}" for top in BESIDE for name in (top, *(f"{top}.{inner}" for inner in find_packages(top)))),
    ]
)
