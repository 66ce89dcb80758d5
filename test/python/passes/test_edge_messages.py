"""Messages in text: what is written reads back equal, what is read is what was planned, and wrong text is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar

import pytest
from jaxlib.mlir import ir
from test_lower_transfers import STAGES, lowered, planned

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMulticast, RhinoPlacement
from rhino.dialect.context import parse_text
from rhino.errors import RhinoError
from rhino.ir.pipeline.messages import EdgeMessages, multicast_data, read_messages
from rhino.ir.pipeline.multicasts import Multicasts
from rhino.ir.pipeline.program import read_program, transfer_ops
from rhino.ir.pipeline.transfers import lower_transfers, plan_edges
from rhino.machine import Cluster
from rhino.pipeline.program import SignatureEdge, all_edges, signature_edges
from rhino.reshard.checker import check_program
from rhino.reshard.data import SCHEDULERS, STRATEGIES, Network
from rhino.runtime.here import messages_here, planned_here


@dataclass(frozen=True)
class Gpu:
    """What the runtime asks of a device."""

    id: int
    process_index: int
    platform: ClassVar[str] = "gpu"

    @property
    def partition_index(self) -> int:
        return self.process_index


def network(per_host: int, latency: Fraction = Fraction(1, 10**5)) -> Callable[..., Network]:
    """Hosts of so many devices."""

    def among(devices: Any) -> Network:
        host_of = {device: device // per_host for device in devices}
        return Network(host_of, dict.fromkeys(sorted(set(host_of.values())), Fraction(10**9)), latency)

    return among


def spread(seed: int, per_host: int, strategy: str = "broadcast", scheduler: str = "optimal") -> ir.Module:
    """A random step whose stages have several hosts each."""
    module = lowered(seed, per_host=False)
    lower_transfers(module, read_program(module), network(per_host), strategy, scheduler)
    return module


@pytest.mark.parametrize(
    ("strategy", "scheduler"),
    [
        pytest.param(*case, marks=[pytest.mark.long] * ("broadcast" not in case and "optimal" not in case))
        for case in product(STRATEGIES, SCHEDULERS)
    ],
)
def test_what_is_planned_is_written_and_reads_back_equal(strategy: str, scheduler: str) -> None:
    hops, signature = 0, 0
    for seed in range(3):
        for per_host in (1, 2):
            module = spread(seed, per_host, strategy, scheduler)
            again = parse_text(str(module), module.context)
            program = read_program(again)
            found = read_messages(again, program)
            places = Multicasts(again, program)
            made = plan_edges(read_program(module), network(per_host), strategy, scheduler)
            for edge, plan, messages in made:
                assert found[edge.name] == messages
                assert messages.program.phases == plan.program.phases
                assert messages.program.bundles == plan.program.bundles
                written = multicast_data(messages)
                for data, each in zip(places.checked(edge), written, strict=True):
                    assert {key: data[key] for key in each} == each
                    assert data["edge"] == edge.name
                signature += isinstance(edge, SignatureEdge)
                hops += sum(len(step.hops) for phase in plan.program.phases for step in phase.steps)
            assert list(found) == [edge.name for edge in all_edges(program)]
    assert hops > 50 and signature > 5


def edited(module: ir.Module, edit: Callable[[dict[str, Any]], None], chosen: Callable[[Any], bool]) -> ir.Module:
    """The module with the data of one transfer changed."""
    op, data = next((op, RhinoMulticast.of(op)) for op in transfer_ops(module) if chosen(RhinoMulticast.of(op)))
    edit(data)
    RhinoMulticast.attach(op, data)
    return module


def crosses(data: Any) -> bool:
    return bool(data.get("phases")) and "sender" in data["units"][0]


def _hop(data: dict[str, Any], at: int, value: int) -> None:
    data["phases"][0]["steps"][0][0][at] = value


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no message": (lambda d: d.update(phases=[]), r"host \d+ has no byte 0 of it at the end"),
    "another source": (lambda d: _hop(d, 0, d["phases"][0]["steps"][0][0][1]), "not between two hosts of the program"),
    "a host too many": (lambda d: _hop(d, 1, 99), r"a message of host 99, but there are \d+ hosts"),
    "fewer bytes": (lambda d: _hop(d, 4, 1), r"at the end|does not have byte"),
    "another bundle": (lambda d: _hop(d, 2, 50), r"phase 0 step 0: bundle 50 .* there are \d+ bundles"),
    "short hop": (lambda d: d["phases"][0]["steps"][0][0].pop(), "is not \\[from, to, bundle, start, bytes\\]"),
    "no bundle": (lambda d: d.update(bundles=[]), "needs it, but it is in no bundle"),
    "a lost host": (lambda d: d["hosts"].pop(0), "host|device"),
    "a host twice": (lambda d: d["hosts"].append(d["hosts"][0]), "is on two hosts"),
    "order": (lambda d: d["units"][0].update(order=77), "no unit of edge '.*' has order"),
    "no sender": (lambda d: d["units"][0].pop("sender"), "nobody sends it, but by its messages host 1 sends 8 bytes"),
    "a slice": (lambda d: d["units"].pop(), "the units hold"),
    "phases gone": (lambda d: d.pop("phases"), "has hosts, bundles, but an edge has hosts, bundles and phases"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_text_that_cannot_be_is_refused_at_its_transfer(name: str) -> None:
    edit, message = TAMPERED[name]
    module = edited(spread(0, 2), edit, crosses)
    text = str(module)
    again = parse_text(text, module.context)
    with pytest.raises(RhinoError, match=message) as caught:
        read_messages(again, read_program(again))
    assert "\n" not in caught.value.message
    line = caught.value.diagnostic.position.line  # type: ignore[attr-defined]
    assert "mpmd.transfer" in text.splitlines()[line - 1]


def test_a_sender_that_its_messages_do_not_name_is_refused() -> None:
    def other(data: dict[str, Any]) -> None:
        unit = next(unit for unit in data["units"] if len(unit["holders"]) > 1)
        unit["sender"] = next(device for device in unit["holders"] if device != unit["sender"])

    module = spread(1, 1, scheduler="naive")
    edited(module, other, lambda data: crosses(data) and any(len(unit["holders"]) > 1 for unit in data["units"]))
    with pytest.raises(RhinoError, match=r"units\[\d+\]: host \d sends \d+ bytes, but by its messages host \d sends"):
        read_messages(module, read_program(module))


def test_text_without_messages_is_read_as_none() -> None:
    module = lowered(0)
    for op in transfer_ops(module):
        del op.attributes[RhinoMulticast.name]
    program = read_program(module)
    places = Multicasts(module, program)
    places.clear(all_edges(program), None)
    places.write()
    assert read_messages(module, read_program(module)) == {}


def signed(seed: int, of: str) -> tuple[ir.Module, SignatureEdge, list[Any]]:
    """A random step on hosts of two devices, an edge of its signature, and what the text says of it."""
    module = spread(seed, 2)
    program = read_program(module)
    edge = next(edge for edge in signature_edges(program) if edge.of == of)
    return module, edge, Multicasts(module, program).checked(edge)


@pytest.mark.parametrize("of", ["argument", "results"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no message", r"edge '.*': .* has no byte 0 of it at the end"),
        ("another source", "not between two hosts of the program|is the source of two messages"),
        ("order", "no unit of edge '.*' has order"),
        ("a slice", "the units hold|device .* needs"),
    ],
)
def test_text_of_the_signature_that_cannot_be_is_refused_at_main(of: str, name: str, message: str) -> None:
    seed = next(s for s in range(20) if any(e.of == of for e in signature_edges(read_program(spread(s, 2)))))
    module, edge, data = signed(seed, of)
    TAMPERED[name][0](data[0])
    places = Multicasts(module, read_program(module))
    places.attach(edge, data)
    places.write()
    text = str(module)
    again = parse_text(text, module.context)
    with pytest.raises(RhinoError, match=message) as caught:
        read_messages(again, read_program(again))
    line = caught.value.diagnostic.position.line  # type: ignore[attr-defined]
    assert "func.func @main" in text.splitlines()[line - 1]


def test_text_on_what_is_not_sent_is_refused() -> None:
    module, edge, data = signed(0, "results")
    main = functions.find(module, "main")
    assert main is not None
    results = functions.result_attributes(main)
    other = next(k for k in range(len(results)) if k not in edge.parts and RhinoMulticast.name not in results[k])
    results[other][RhinoMulticast.name] = RhinoMulticast.to_attr(data[0], module.context)
    functions.set_result_attributes(main, results)
    with pytest.raises(RhinoError, match=f"rhino.multicast: result {other} is not sent"):
        read_messages(module, read_program(module))


# --- the processes that are here ------------------------------------------------------------------------------------


def devices(per_process: int) -> list[Any]:
    return [Gpu(100 + number, number // per_process) for number in range(4 * STAGES)]


def test_messages_for_these_processes_are_sent_as_they_stand() -> None:
    module = spread(2, 2)
    text = str(module)
    messages, changed = messages_here(module, devices(2))
    assert not changed
    assert str(module) == text
    assert messages == read_messages(module, read_program(module))


@pytest.mark.parametrize("seed", range(3))
def test_a_process_for_each_host_of_the_cluster_sends_what_was_planned_for_it(seed: int) -> None:
    module, cluster = lowered(seed), Cluster.load("p3.8xlarge:3")
    messages, changed = messages_here(module, devices(4), cluster)
    assert not changed
    assert messages == planned_here(read_program(module), devices(4), cluster, "broadcast", "optimal")


def test_one_process_has_no_messages_and_the_module_says_so() -> None:
    module = spread(2, 2)
    assert any(messages.program.phases for messages in read_messages(module, read_program(module)).values())
    messages, changed = messages_here(module, devices(100))
    assert changed
    assert messages and all(not each.program.phases and not any(each.senders) for each in messages.values())
    assert messages == read_messages(module, read_program(module))
    assert not re.search(r"sender|steps", str(module))
    assert not {edge.name for edge in signature_edges(read_program(module))} & set(messages)
    # Once planned for what is here, it stays.
    assert messages_here(module, devices(100)) == (messages, False)


def test_other_processes_are_planned_for_with_the_strategy_of_the_text() -> None:
    module = spread(2, 1, "send-recv", "naive")
    messages, changed = messages_here(module, devices(2))
    assert changed
    wanted = plan_edges(read_program(module), network(2), "send-recv", "naive")
    assert {edge.name: each for edge, _, each in wanted} == messages
    assert {(data["strategy"], data["scheduler"]) for data in planned(module)} == {("send-recv", "naive")}


def test_only_edges_for_other_hosts_are_planned_again() -> None:
    module = spread(2, 1)
    placement = RhinoPlacement.of(module) or {}
    last = set(list(placement.values())[-1])
    # The last stage's devices are of one process; edges between the others are as they were.
    there = [Gpu(each.id, 50) if number in last else each for number, each in enumerate(devices(1))]
    before = read_messages(module, read_program(module))
    untouched = [name for name, each in before.items() if not last & set(each.host_of)]
    op = transfer_ops(module)[before[untouched[0]].parts[0]]
    RhinoMulticast.attach(op, {**RhinoMulticast.of(op), "makespan_s": 7.0})
    messages, changed = messages_here(module, there)
    assert changed
    assert len(last) > 1
    assert all(messages[name] == before[name] for name in untouched)
    assert RhinoMulticast.of(transfer_ops(module)[before[untouched[0]].parts[0]])["makespan_s"] == 7.0
    assert all((messages[name] != each) == (name not in untouched) for name, each in before.items())


def test_numbers_of_other_devices() -> None:
    module = spread(1, 2)
    for messages in read_messages(module, read_program(module)).values():
        moved = messages.numbered([device + 40 for device in range(4 * STAGES)])
        hosts = Network(moved.host_of, dict.fromkeys(range(len(moved.hosts)), Fraction(1)))
        check_program(moved.program, hosts)
        back = moved.numbered({device + 40: device for device in range(4 * STAGES)})
        assert back == messages and isinstance(back, EdgeMessages)
