"""Every step of the zoo, in every mode: what plain `jax.jit` gives, or the refusal that the documentation states."""

from __future__ import annotations

from typing import Any

import pytest

from zoo import harness, table


def _cases() -> list[Any]:
    # By step, so that a step and what plain jax.jit makes of it are made once.
    return [
        pytest.param(name, mode, id=f"{name}-{mode}", marks=[] if mode in harness.about(name).ci else pytest.mark.long)
        for name in harness.names()
        for mode in harness.MODES
    ]


@pytest.mark.parametrize(("name", "mode"), _cases())
def test_step(name: str, mode: str) -> None:
    missing = harness.missing(name)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[zoo]'")
    harness.check(name, mode)


def test_table_is_current() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run python test/python/zoo/table.py"
    assert len(harness.names()) >= 100
    assert all(map(table.described, harness.names()))


def test_what_is_claimed_of_pipelines() -> None:
    cut, whole = table.pipelines()
    assert len(cut) >= 70
    assert len(cut) + len(whole) >= 100
