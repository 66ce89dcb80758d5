"""Jobs of several real processes: they train as one device does, start together or not at all, and end together."""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import jax
import numpy as np
import processes
import pytest
import small_mlp
from pinned_steps import towers, transformer

from examples.models import gpt

HERE = Path(__file__).parent
TRAIN = HERE / "train_worker.py"
# What the requirement allows a process to take to end after another one died. It takes milliseconds.
LIMIT_S = 30


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss \d+ ([^;]+);", output)]


def refused(fault: str, victim: int, count: int = 3, at: str = "0", **options: object) -> list[str]:
    """What each process says that is refused before its first step, all with one error."""
    ended = processes.wait(processes.start(TRAIN, count, [fault, str(victim), at], forked=True, **options), 120)  # type: ignore[arg-type]
    report = "\n".join(f"--- process {i}: exit {one.code}\n{one.output}" for i, one in enumerate(ended))
    assert all(one.code == 1 for one in ended), report
    assert not any(losses(one.output) for one in ended), report
    found = [re.findall(r"^rhino\.errors\.RhinoError: (.*)$", one.output, re.MULTILINE) for one in ended]
    assert all(len(errors) == 1 for errors in found), report
    return [errors[0] for errors in found]


def test_losses_of_four_processes_are_those_of_one_device() -> None:
    outputs = processes.run(TRAIN, 4, timeout=120)
    state, expected = small_mlp.init(jax.random.key(0)), []
    run = jax.jit(small_mlp.train_step)
    for i in range(6):
        state, metrics = run(state, small_mlp.make_batch(4096, seed=i))
        expected.append(float(metrics["loss"]))
    for output in outputs:
        np.testing.assert_allclose(losses(output), expected, rtol=1e-5)
        # All devices work, each on its examples.
        assert any(f"batch['x']:({axes}, ())" in output for axes in (("x", "y"), ("y", "x")))
        assert "rhino:" not in output


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_process_ends_all_others_with_its_name(victim: int) -> None:
    started = processes.start(TRAIN, 4, ["kill", str(victim), "3"], forked=True)
    ended = processes.wait(started, 120)
    died = ended[victim]
    assert died.code == -9
    assert "here" in died.output
    for number, one in enumerate(ended):
        if number != victim:
            # Where process 0 is gone, and jax's service with it, XLA aborts at the same time.
            assert one.code == 1 or (victim == 0 and one.code == -6), one.output
            named = f"rhino: process {victim} (host "
            assert named in one.output
            assert f"pid {started[victim].pid}) is gone" in one.output
            # Of the last step the one that died may have had the result, and others not yet.
            assert len(losses(one.output)) in (2, 3)
            assert one.seconds - died.seconds < LIMIT_S


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_a_process_that_hangs_ends_all_others_with_its_name(victim: int) -> None:
    started = processes.start(TRAIN, 3, ["freeze", str(victim), "1"], forked=True)
    others = processes.wait([one for number, one in enumerate(started) if number != victim], 120)
    started[victim].kill()
    started[victim].communicate()
    for one in others:
        # Only jax's service knows that a process has no heartbeat, and says so to all by XLA's abort.
        assert one.code in (1, -6), one.output
        found = re.findall(r"rhino: process (\d+) \(host \S+, pid (\d+)\) d(?:oes|id) not answer", one.output)
        assert found and set(found) == {(str(victim), str(started[victim].pid))}, one.output
        assert one.code == 1 or f"heartbeats):\n{victim}\n" in one.output.replace("\n\n", "\n"), one.output


def test_in_a_collective_the_one_that_died_is_named_and_not_one_whose_communication_failed() -> None:
    started = processes.start(TRAIN, 3, ["collective", "0", "2"], forked=True)
    for one in processes.wait(started, 120)[1:]:
        assert one.code in (1, -6), one.output
        assert f"rhino: process 0 (host {socket.gethostname()}, pid {started[0].pid}) is gone" in one.output
        assert not re.search(r"^rhino: .* failed: ", one.output, re.MULTILINE), one.output


def test_the_error_of_one_process_is_said_by_all() -> None:
    ended = processes.wait(processes.start(TRAIN, 3, ["raise", "1", "2"], forked=True), 120)
    assert [one.code for one in ended] == [1, 1, 1]
    assert "Traceback" in ended[1].output
    for number in (0, 2):
        assert "rhino: process 1 (host " in ended[number].output
        assert "failed: ValueError: bad data in shard 7" in ended[number].output


def test_a_process_that_ends_early_is_named_where_others_would_wait_for_it() -> None:
    ended = processes.wait(processes.start(TRAIN, 3, ["end", "1", "2"], forked=True), 120)
    for number in (0, 2):
        assert ended[number].code == 1
        assert "ended after 2 steps, and this process is in its step 3" in ended[number].output
        # The first of them to get there ends the other one, which may not have printed its second.
        assert len(losses(ended[number].output)) <= 2


def test_other_versions_are_refused() -> None:
    for error in refused("version", 1):
        assert re.match(
            rf"the processes have different versions of jax: jax {re.escape(jax.__version__)} in process 0 \(host .*, "
            r"pid \d+\) and process 2 \(.*\), jax 0\.9\.9 in process 1 \(host .*, pid \d+\); install the same",
            error,
        )


def test_missing_devices_are_refused() -> None:
    for error in refused("devices", 2):
        assert "the processes have different numbers of devices: 2 cpu in process 0 " in error
        assert re.search(r"1 cpu in process 2 \(host .*, pid \d+\)", error)


@pytest.mark.long
def test_a_number_given_twice_is_refused() -> None:
    for error in refused("twice", 2):
        assert "the job cannot start: process 1 was started twice: host " in error


@pytest.mark.parametrize(
    ("fault", "at"), [("count", "0"), pytest.param("late", "8", marks=pytest.mark.long)], ids=["together", "one late"]
)
def test_another_number_of_processes_is_refused(fault: str, at: str) -> None:
    for error in refused(fault, 1, at=at):
        assert re.search(r"process 1 \(host .*, pid \d+\) was started for 4 processes, and process 0 for 3;", error)


def test_a_missing_process_is_named() -> None:
    ended = processes.wait(processes.start(TRAIN, 3, ["missing", "2", "0"], forked=True), 120)
    for one in ended[:2]:
        assert one.code == 1, one.output
        assert "RhinoError: the job cannot start: process 2 did not connect in time;" in one.output


def test_another_program_is_refused() -> None:
    for error in refused("program", 1):
        assert error.startswith("the processes have traced different programs: ")
        assert "dense<-0.00999999977> : tensor<f32> in processes 0, 2" in error
        assert "dense<-2.000000e-02> : tensor<f32> in process 1" in error


def test_other_arguments_are_refused() -> None:
    for error in refused("arguments", 2):
        assert "batch['x'] as f32[4096,64] in processes 0, 1" in error
        assert "batch['x'] as f32[8192,64] in process 2" in error


def test_other_options_are_refused() -> None:
    for error in refused("options", 0):
        assert "the processes differ in level: O0 in process 0, O1 in processes 1, 2" in error


def test_other_plans_are_refused(tmp_path: Path) -> None:
    # Two plans of one program, of which one process is given the other.
    processes.run(TRAIN, 2, ["save", "1", str(tmp_path)], timeout=120, forked=True)
    for error in refused_plans(tmp_path):
        assert re.match(r"the processes were given different plans: \w{64} in process 0, \w{64} in process 1;", error)


def refused_plans(folder: Path) -> list[str]:
    ended = processes.wait(processes.start(TRAIN, 2, ["plans", "1", str(folder)], forked=True), 120)
    assert [one.code for one in ended] == [1, 1]
    assert not any(losses(one.output) for one in ended)
    return [re.findall(r"^rhino\.errors\.RhinoError: (.*)$", one.output, re.MULTILINE)[0] for one in ended]


def test_a_plan_that_process_0_cannot_make_is_an_error_of_all() -> None:
    for number, error in enumerate(refused("memory", 0, count=2)):
        assert error.startswith("process 0 cannot plan: " if number else "")
        assert "memory" in error


def test_arguments_and_results_of_all_kinds_over_two_processes() -> None:
    for output in processes.run(HERE / "arrays_worker.py", 2, timeout=300):
        for kind in ("strided", "placed", "host", "local", "spread", "types", "hosted", "again"):
            assert f"right {kind};" in output


@pytest.mark.long
@pytest.mark.parametrize(("count", "stages", "form"), [(2, 2, "unrolled"), (4, 2, "scanned"), (2, 4, "scanned")])
def test_stages_over_processes_train_as_one_device(count: int, stages: int, form: str) -> None:
    # Of two processes each has a group of devices, of four, two have each. Of four stages each group has two.
    outputs = processes.run(HERE / "stages_worker.py", count, [str(stages), str(stages), form], timeout=400)
    changes = {"layers": stages, "width": 32, "heads": 2, "seq_len": 16, "scan": form == "scanned"}
    config = dataclasses.replace(gpt.PRESETS["tiny"], **changes)
    init, train_step = gpt.make_train_step(config)
    state, batch, expected = init(jax.random.key(0)), gpt.example_batch(config, 8), []
    run = jax.jit(train_step)
    for _ in range(3):
        state, metrics = run(state, batch)
        expected.append(float(metrics["loss"]))
    for output in outputs:
        assert f"plan {stages} 2;" in output
        np.testing.assert_allclose(losses(output), [*expected, expected[0]], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("model", "stages"), [("towers", 4), ("transformer", 2)])
def test_another_batch_finds_the_state_on_the_processes_that_have_it(model: str, stages: int) -> None:
    outputs = processes.run(HERE / "pins_worker.py", 2, [model], devices=4, timeout=400)
    alike = model == "transformer"
    init, train_step, batch = transformer(2, scan=True) if alike else towers((256, 128), (128, 128, 512))
    state, expected = init(jax.random.key(0)), []
    for size in (16, 16, 12, 16):
        state, metrics = jax.jit(train_step)(state, batch(size))
        expected.append(float(metrics["loss"]))
    for output in outputs:
        assert f"plan {stages} {stages};" in output
        assert "kept in 1 places;" in output
        np.testing.assert_allclose(losses(output), expected, rtol=1e-4)
