"""Pipelines in one process: what the runtime adds to the fragments it runs, and whether steps last as simulated.

    python -m bench.pipeline [--rounds N] [--quick] [--json FILE|-]

Overhead: all stages on one virtual CPU device, against the same fragments called back to back, and against the step
as plain `jax.jit` on one device. Simulation: two stages on two devices with 1F1B and eager-1F1B, against the simulator
with the seconds that each fragment and transfer took in the same run, alone on its device, while another device kept
the second core as busy as the other stage would: cores share memory and clock. Transfers are made to last about a third
of a micro-batch's computing by a link that sleeps. The layers are so narrow that each stage uses one core.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bench._common import Table, interleave, main, note, parser, publish, spread
from bench._pipeline_model import Chain
from bench.cpu_mesh import KEEP as KEEP

_SCHEDULES = ("1f1b", "eager-1f1b")
_BURST = 8


def timed(work: Callable[[], Any]) -> float:
    """Seconds until all that `work` returns is there."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def steps(executable: Any, arguments: Sequence[Any]) -> Callable[[], float]:
    """A step that goes on from the parameters of the last one."""
    state = executable.place(arguments)
    batch = state.pop()

    def step() -> float:
        def run() -> Any:
            *state[:], _ = executable.run([*state, batch])
            return state

        return timed(run)

    step()
    return step


def bursts(program: Any, script: Any, modules: Sequence[str], arguments: Sequence[Any]) -> Callable[[], float]:
    """All fragments back to back: each is called several times in a row, and counts as often as a step calls it."""
    from rhino.runtime.compile import compile_fragments
    from rhino.runtime.script import UNREAD, RunFragment

    # Nothing is donated, so that a call can be repeated.
    compiled = compile_fragments(program, modules, [()] * len(modules), "cpu")
    import jax
    import numpy as np

    device = compiled.devices[0][0]
    table: list[Any] = [None] * script.slots
    for argument, slot in zip(program.arguments, script.arguments, strict=True):
        table[slot] = jax.device_put(arguments[argument.index], device)
    for slot, _, microbatch in script.counters:
        table[slot] = jax.device_put(np.uint32(microbatch), device)
    first: dict[int, tuple[Any, list[Any]]] = {}
    calls = [0] * len(modules)
    for action in script.actions:
        assert isinstance(action, RunFragment), "all stages are on one device"
        executable = compiled.executables[action.fragment]
        assert executable is not None  # all of it is in this process
        run, given = executable.compiled, [table[slot] for slot in action.operands]
        made = run(*given)
        for slot, array in zip(action.results, made, strict=True):
            if slot != UNREAD:
                table[slot] = array
        first.setdefault(action.fragment, (run, given))
        calls[action.fragment] += 1

    def burst() -> float:
        total = 0.0
        for index, (run, given) in first.items():
            total += calls[index] * timed(partial(_repeat, run, given)) / _BURST
        return total

    burst()
    return burst


def _repeat(run: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    return [run(*given) for _ in range(_BURST)]


def overhead(chain: Chain, rounds: int) -> dict[str, Any]:
    """The pipeline on one device, its fragments, and the step without stages."""
    import jax

    from bench._pipeline_model import arguments, build, whole_step
    from rhino.pipeline.schedule import PipelineCosts, make_schedule
    from rhino.runtime import build_program

    program, modules = build(chain)
    schedule = make_schedule(
        "interleaved-1f1b", PipelineCosts.uniform(chain.stages, 1.0, 3.0, groups=1), chain.microbatches
    )
    executable = build_program(program, schedule, modules)
    given = arguments(chain)
    plain = jax.jit(whole_step(chain))
    placed = [jax.device_put(a, jax.devices()[0]) for a in given]
    timed(lambda: plain(*placed))
    found = interleave(
        {
            "pipeline": steps(executable, given),
            "fragments": bursts(program, executable.script, modules, given),
            "plain jit": lambda: timed(lambda: plain(*placed)),
        },
        rounds,
    )
    ratios = [p / f for p, f in zip(found["pipeline"], found["fragments"], strict=True)]
    return {
        "case": f"{chain.name}, {chain.layers} layers each",
        "tasks": len(executable.script.actions),
        "seconds": {name: spread(samples) for name, samples in found.items()},
        "over_fragments": statistics.median(ratios),
        "over_plain": statistics.median(p / f for p, f in zip(found["pipeline"], found["plain jit"], strict=True)),
        "compile_s": executable.seconds,
        "programs": len(set(executable.compiled.programs)),
        "fragments": len(modules),
    }


class Links:
    """Sleeping links: each way between two groups is a virtual device that holds what it is given for some time."""

    def __init__(self, devices: Sequence[Any], links: Sequence[Any], seconds: float) -> None:
        self._link = {(devices[a], devices[b]): links[i] for i, (a, b) in enumerate(((0, 1), (1, 0)))}
        self._seconds = seconds
        self._held: dict[Any, Any] = {}

    def put(self, array: Any, sharding: Any) -> Any:
        """As `jax.device_put`, later."""
        import jax

        link = self._link[next(iter(array.devices())), next(iter(sharding.device_set))]
        return jax.device_put(self._hold(link)(jax.device_put(array, link)), sharding)

    def _hold(self, link: Any) -> Any:
        import jax

        def wait(array: Any) -> Any:
            time.sleep(self._seconds)
            return array

        if link not in self._held:
            sharding = jax.sharding.SingleDeviceSharding(link)
            self._held[link] = jax.jit(
                lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x), out_shardings=sharding
            )
        return self._held[link]


@contextlib.contextmanager
def neighbour(work: Callable[[], Any]) -> Iterator[None]:
    """Keeps a core busy with `work`, again and again."""
    import jax

    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            jax.block_until_ready([work() for _ in range(4)])

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def fidelity(chain: Chain, rounds: int, share: float) -> dict[str, Any]:
    """Steps of both schedules against the simulator; each transfer lasts `share` of a micro-batch's computing."""
    import jax

    from bench._pipeline_model import arguments, build, functions, whole_step
    from rhino.pipeline.schedule import PipelineCosts, make_schedule, simulate
    from rhino.runtime import PipelineExecutable, build_program

    program, modules = build(chain)
    given = arguments(chain)
    uniform = PipelineCosts.uniform(chain.stages, 1.0, 3.0)
    base = build_program(program, make_schedule("1f1b", uniform, chain.microbatches), modules)
    other = jax.devices()[2 * chain.groups]
    busy = jax.jit(jax.grad(lambda params, x: functions(chain)["layers"](params, x).sum()))
    inputs = [jax.device_put(a, other) for a in (given[0], given[-1][0])]
    timed(lambda: busy(*inputs))
    with neighbour(lambda: busy(*inputs)):
        costs = base.profile(base.place(given)).costs()
    computing = statistics.mean(f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True))
    put = jax.device_put
    if share:
        links = Links([d for (d,) in base.compiled.devices], jax.devices()[chain.groups :], share * computing)
        put = links.put
    made = {}
    for name in _SCHEDULES:
        schedule = make_schedule(name, uniform, chain.microbatches)
        one = build_program(program, schedule, modules)
        made[name] = PipelineExecutable(program, schedule, one.script, one.compiled, "cpu", put=put)
    profiles = []
    placed = made["1f1b"].place(given)

    def profile() -> float:
        with neighbour(lambda: busy(*inputs)):
            profiles.append(made["1f1b"].profile(placed, repeats=1).costs())
        return 0.0

    plain = jax.jit(whole_step(chain))
    alone = [jax.device_put(a, jax.devices()[0]) for a in given]
    timed(lambda: plain(*alone))
    cases = {name: steps(executable, given) for name, executable in made.items()}
    cases |= {"plain jit": lambda: timed(lambda: plain(*alone)), "profile": profile}
    found = interleave(cases, rounds)
    costs = _median_costs(profiles)
    rows = {}
    for name, executable in made.items():
        simulated = simulate(executable.schedule, costs)
        measured = spread(found[name])
        rows[name] = {
            "measured_s": measured,
            "simulated_s": simulated.step_time_s,
            "measured_over_simulated": measured["median"] / simulated.step_time_s,
            "bubble": simulated.bubble_fraction,
        }
    first, second = (rows[name] for name in _SCHEDULES)
    edge = costs.edges[0]
    return {
        "case": f"{chain.name}, transfers {share:.2f} of computing",
        "forward_s": costs.forward_s,
        "backward_s": costs.backward_s,
        "transfer_s": [edge.forward_s, edge.backward_s],
        "schedules": rows,
        "eager_over_1f1b": {
            "measured": second["measured_s"]["median"] / first["measured_s"]["median"],
            "simulated": second["simulated_s"] / first["simulated_s"],
        },
        "plain_jit_s": spread(found["plain jit"]),
    }


def _median_costs(profiles: Sequence[Any]) -> Any:
    """Every number the median of its measurements; transfers of one way queue for one link."""

    def middle(name: str) -> tuple[float, ...]:
        return tuple(map(statistics.median, zip(*(getattr(p, name) for p in profiles), strict=True)))

    edges = []
    for k, edge in enumerate(profiles[0].edges):
        there = statistics.median(p.edges[k].forward_s for p in profiles)
        back = statistics.median(p.edges[k].backward_s for p in profiles)
        ways = (f"{edge.src}->{edge.dst}",), (f"{edge.dst}->{edge.src}",)
        edges.append(replace(edge, forward_s=there, backward_s=back, forward_links=ways[0], backward_links=ways[1]))
    names = ("forward_s", "backward_s", "weight_s", "prepare_s", "apply_s")
    return replace(profiles[0], edges=tuple(edges), **{name: middle(name) for name in names})


def tables(overheads: Sequence[dict[str, Any]], simulations: Sequence[dict[str, Any]]) -> list[Table]:
    """What is printed."""

    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:.2f}"

    first = Table(
        "All stages on one device (ms)",
        ("case", "tasks", "pipeline", "fragments", "ratio", "plain jit", "ratio", "compiled", "seconds"),
        tuple(
            (
                row["case"],
                str(row["tasks"]),
                ms(row["seconds"]["pipeline"]["median"]),
                ms(row["seconds"]["fragments"]["median"]),
                f"{row['over_fragments']:.3f}",
                ms(row["seconds"]["plain jit"]["median"]),
                f"{row['over_plain']:.3f}",
                f"{row['programs']} of {row['fragments']}",
                f"{row['compile_s']:.2f}",
            )
            for row in overheads
        ),
    )
    second = Table(
        "Simulated and measured steps (ms)",
        ("case", "schedule", "simulated", "measured", "ratio", "eager/1f1b measured", "simulated", "plain jit"),
        tuple(
            (
                row["case"],
                name,
                ms(found["simulated_s"]),
                ms(found["measured_s"]["median"]),
                f"{found['measured_over_simulated']:.3f}",
                f"{row['eager_over_1f1b']['measured']:.3f}",
                f"{row['eager_over_1f1b']['simulated']:.3f}",
                ms(row["plain_jit_s"]["median"]),
            )
            for row in simulations
            for name, found in row["schedules"].items()
        ),
    )
    return [table for table in (first, second) if table.rows]


def body() -> None:
    """Measure and print."""
    p = parser("bench.pipeline", __doc__)
    p.add_argument("--only", choices=("overhead", "simulation"), help="one of the two parts")
    p.add_argument("--rounds", type=int, help="timed steps of each way (default: 30; 3 with --quick)")
    args = p.parse_args()
    rounds = args.rounds or (3 if args.quick else 30)

    from rhino.compile import ensure_cpu_devices

    ensure_cpu_devices(5)  # two groups, a link each way between them, and a neighbour
    sizes = ((4, 8, 64),) if args.quick else ((4, 8, 16), (4, 8, 64), (8, 16, 64))
    overheads = []
    for stages, microbatches, layers in sizes if args.only != "simulation" else ():
        note(f"{stages} stages on one device, {layers} layers each")
        overheads.append(overhead(Chain(stages, 1, microbatches, layers), rounds))
    simulations = []
    for share in (0.0, 1 / 3) if args.only != "overhead" else ():
        note(f"two stages on two devices, transfers {share:.2f} of computing")
        simulations.append(fidelity(Chain(2, 2, 8 if args.quick else 12, 64 if args.quick else 384), rounds, share))
    record = {"overhead": overheads, "simulation": simulations}
    publish("pipeline", args, record, tables(overheads, simulations))


if __name__ == "__main__":
    if not KEEP.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, "-m", "bench.pipeline", *sys.argv[1:]], {**os.environ, **KEEP})
    main(body)
