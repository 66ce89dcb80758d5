"""Saved under one plan, restored under another, another number of devices, or by plain Orbax: the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint_models import assert_same_bits, cluster, fused_gpt, gated, planned, train

import rhino
from rhino.checkpoint import abstract_state, restore, save
from rhino.checkpoint.leaves import arrays_of
from rhino.runtime import StagedArray

PLANS: dict[str, dict[str, Any]] = {
    "pipeline of 4": {"devices": 4, "stages": 4, "microbatches": 2},
    "pipeline of 2": {"devices": 8, "stages": 2, "microbatches": 2},
    "2x4": {"devices": 8, "stages": 1, "mesh": (2, 4)},
    "4 devices": {"devices": 4, "stages": 1, "mesh": (4,)},
}


class Plans:
    """Steps of one model under each plan, each trained, saved, and trained on."""

    def __init__(self, model: tuple[Any, Any, Any], folder: Path) -> None:
        self.model, self.folder = model, folder
        self._steps: dict[str, Any] = {}
        self._saved: dict[str, tuple[Path, Any, list[float], Any]] = {}
        self._placed: dict[str, list[Any]] = {}

    def step(self, name: str) -> Any:
        """The step under a plan; one has run already."""
        if name not in self._steps:
            options = dict(PLANS[name])
            where = cluster(self.folder, options.pop("devices"))
            self._steps[name] = planned(self.model, where, **options)
        return self._steps[name]

    def saved(self, name: str) -> tuple[Path, Any, list[float], Any]:
        """Where its state after a step is, that state on the host, and the losses and the state of two more steps."""
        if name not in self._saved:
            init, _, batch = self.model
            step = self.step(name)
            state = step.init(init, jax.random.key(0))
            self._placed[name] = placement(state)
            state, _ = train(step, state, batch, 1)
            path = self.folder / name
            save(path, state)
            host = jax.tree.map(np.asarray, state)
            state, losses = train(step, state, batch, 2)
            self._saved[name] = path, host, losses, jax.tree.map(np.asarray, state)
        return self._saved[name]

    def placed(self, name: str) -> list[Any]:
        """Where its state is once it is made."""
        self.saved(name)
        return self._placed[name]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Plans:
    return Plans(gated(), tmp_path_factory.mktemp("gated"))


def kinds(state: Any) -> set[type]:
    return {type(leaf) for leaf in jax.tree.leaves(state)}


def placement(state: Any) -> list[Any]:
    """Of each leaf what it is, and the shapes and places of the arrays that it is made of."""
    return [
        (type(leaf), leaf.aval, [(array.shape, array.sharding) for array in arrays_of(leaf)])
        for leaf in jax.tree.leaves(state)
    ]


@pytest.mark.parametrize("name", ["pipeline of 4", "2x4"])
def test_continues_under_its_own_plan_as_if_it_had_never_stopped(plans: Plans, name: str) -> None:
    path, host, losses, after = plans.saved(name)
    step = plans.step(name)
    state = restore(path, step)
    assert kinds(state) == {type(jnp.zeros(1)), StagedArray if "pipeline" in name else rhino.StridedArray}
    assert_same_bits(state, host)
    assert placement(state) == plans.placed(name)
    again, same_losses = train(step, state, plans.model[2], 2)
    assert same_losses == losses
    assert_same_bits(again, after)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("pipeline of 4", "pipeline of 2"),
        ("pipeline of 2", "2x4"),
        ("2x4", "pipeline of 4"),
        ("2x4", "4 devices"),
        ("4 devices", "2x4"),
    ],
)
def test_restores_under_another_plan(plans: Plans, source: str, target: str) -> None:
    path, host, losses, _ = plans.saved(source)
    step = plans.step(target)
    state = restore(path, step)
    assert_same_bits(state, host)
    assert placement(state) == plans.placed(target)
    _, ours = train(step, state, plans.model[2], 2)
    np.testing.assert_allclose(ours, losses, rtol=1e-4)


@pytest.mark.parametrize("name", ["pipeline of 4", "2x4"])
def test_plain_orbax_restores_it_onto_one_device(plans: Plans, name: str) -> None:
    path, host, losses, _ = plans.saved(name)
    init, train_step, batch = plans.model
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), jax.eval_shape(init, jax.random.key(0))
    )
    state = ocp.StandardCheckpointer().restore(path, like)
    assert_same_bits(state, host)
    _, ours = train(jax.jit(train_step), state, batch, 2)
    np.testing.assert_allclose(ours, losses, rtol=1e-4)
    for checkpointer in (ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer()):
        found = checkpointer.restore(path)  # without a target: as of the program for one device
        assert all(leaf.sharding == one for leaf in jax.tree.leaves(found))
        np.testing.assert_array_equal(found["layers"]["up"], host["layers"]["up"])


@pytest.mark.parametrize("name", ["pipeline of 2", "4 devices"])
def test_restores_what_plain_orbax_wrote(plans: Plans, name: str, tmp_path: Path) -> None:
    init, train_step, batch = plans.model
    alone, _ = train(jax.jit(train_step), init(jax.random.key(0)), batch, 1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "plain", alone)
    state = restore(tmp_path / "plain", plans.step(name))
    assert_same_bits(state, jax.tree.map(np.asarray, alone))
    assert kinds(state) > {type(jnp.zeros(1))}


def test_a_state_or_what_to_restore_is_a_target_too(plans: Plans) -> None:
    path, host, _, _ = plans.saved("2x4")
    step = plans.step("2x4")
    state = step.init(plans.model[0], jax.random.key(1))
    for target in (state, abstract_state(state), abstract_state(step)):
        found = restore(path, target)
        assert_same_bits(found, host)
        assert placement(found) == placement(state)


def test_no_device_reads_or_writes_what_it_does_not_have(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save or restore never makes the original of a leaf, and puts only blocks on devices."""
    path, _, _, _ = plans.saved("2x4")
    step = plans.step("2x4")
    largest = [0]
    real = jax.device_put

    def device_put(value: Any, *where: Any, **how: Any) -> Any:
        largest[0] = max(largest[0], np.asarray(value).nbytes)
        return real(value, *where, **how)

    def fail(*_: object) -> None:
        raise AssertionError("made the original")

    monkeypatch.setattr(rhino.StridedArray, "original", fail)
    monkeypatch.setattr(jax, "device_put", device_put)
    state = restore(path, step)
    blocks = [shard.data.nbytes for leaf in jax.tree.leaves(state) if isinstance(leaf, rhino.StridedArray)
              for shard in leaf.stored.addressable_shards]  # fmt: skip
    whole = max(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert 0 < largest[0] < whole and max(blocks) < whole
    save(plans.folder / "again", state)


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_a_gpt_trains_on_under_other_plans(scan: bool, tmp_path: Path) -> None:
    plans = Plans(fused_gpt(scan), tmp_path)
    for source, target in [("pipeline of 4", "2x4"), ("2x4", "pipeline of 4")]:
        path, host, losses, after = plans.saved(source)
        assert_same_bits(restore(path, plans.step(target)), host)
        again, same = train(plans.step(source), restore(path, plans.step(source)), plans.model[2], 2)
        assert same == losses
        assert_same_bits(again, after)
        _, ours = train(plans.step(target), restore(path, plans.step(target)), plans.model[2], 2)
        np.testing.assert_allclose(ours, losses, rtol=1e-4)
