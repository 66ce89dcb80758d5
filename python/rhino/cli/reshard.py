"""`rhino reshard`: how a tensor gets from one mesh to another across hosts, as a table or JSON.

Owns this command's options and outputs. Knows nothing of how transfers are planned.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from rhino.cli import files
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.program.element_types import dtype_bytes, element_type, type_text
from rhino.reshard.data import SCHEDULERS, STRATEGIES, MovedTensor, Network, Tile
from rhino.reshard.networks import network_of
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.tiles import parse_spec, spec_tiles

if TYPE_CHECKING:
    from rich.table import Table

_UNITS_SHOWN = 12


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `reshard` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "reshard",
        help="plan the way of a tensor from one mesh to another",
        description="Plan the way of a tensor from a mesh of devices to another one. Both are on consecutive devices "
        "of the cluster, row-major: the source from device 0, the destination from the next host boundary after it. On "
        "hosts of 4 devices, mesh 2x4 is 2 whole hosts. A spec has R (replicated) or S and mesh axes (S0, S01: split) "
        "for each dimension. Times count what crosses between hosts.",
        epilog="try rhino reshard --shape 1024,1024 --src-mesh 2x4 --src-spec S0,R --dst-mesh 2x4 --dst-spec R,S0 "
        "--cluster p3.8xlarge:4",
    )
    parser.add_argument(
        "--shape", metavar="N,..", required=True, help="sizes of the tensor's dimensions: 1024,1024,512"
    )
    parser.add_argument("--dtype", metavar="T", default="f32", help="f32 (default), bf16, i32, f8E4M3FN, i1, ..")
    parser.add_argument("--src-mesh", metavar="AxB", required=True, help="sizes of the source mesh: 2x4")
    parser.add_argument("--src-spec", metavar="S", required=True, help="how the tensor lies there: S0,R,R")
    parser.add_argument("--dst-mesh", metavar="AxB", required=True, help="sizes of the destination mesh")
    parser.add_argument("--dst-spec", metavar="S", required=True, help="how the tensor shall lie there")
    parser.add_argument("--cluster", metavar="C", required=True, help="preset[:hosts], a YAML file[:hosts], or local")
    parser.add_argument(
        "--per-host", type=int, metavar="N", help="devices that meshes use of each host, the first ones (default: all)"
    )
    parser.add_argument("--strategy", metavar="S", default="broadcast", help=f"{', '.join(STRATEGIES)} (broadcast)")
    parser.add_argument("--scheduler", metavar="S", default="optimal", help=f"{', '.join(SCHEDULERS)} (optimal)")
    parser.add_argument("--chunks", type=int, metavar="K", help="pieces of each broadcast (default: the best number)")
    parser.add_argument("--compare", action="store_true", help="plan with every strategy, and with every scheduler too")
    parser.add_argument("--json", metavar="F", help="write JSON to F, or - for standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked for: one tensor over a network."""

    tensor: MovedTensor
    network: Network
    chunks: int | None

    def plan(self, strategy: str, scheduler: str) -> ReshardPlan:
        return plan_reshard([self.tensor], self.network, strategy, scheduler, chunks=self.chunks)


def run(args: argparse.Namespace) -> int:
    """Plan the transfer, then write what was asked for. RhinoError on bad input, for the caller to print."""
    files.check_writable(args.json)
    request = _request(args)
    plan = request.plan(args.strategy, args.scheduler)
    others = _others(request, plan) if args.compare else []
    if args.json:
        files.write(args.json, json.dumps(_json(args, plan, others), indent=1) + "\n")
    # Standard output belongs to one reader: a machine when JSON goes there.
    if not args.quiet and args.json != "-":
        _print(args, request, plan, others)
    return 0


def _request(args: argparse.Namespace) -> _Request:
    cluster = Cluster.load(args.cluster)
    element = _element(args.dtype)
    shape = _sizes(args.shape, ",", "--shape", 0)
    source, target = _sizes(args.src_mesh, "x", "--src-mesh", 1), _sizes(args.dst_mesh, "x", "--dst-mesh", 1)
    per_host = cluster.devices_per_host if args.per_host is None else args.per_host
    if not 1 <= per_host <= cluster.devices_per_host:
        raise RhinoError(
            f"--per-host {per_host}, but hosts of cluster {cluster.name} have {cluster.devices_per_host} devices",
            f"give 1 to {cluster.devices_per_host}",
        )
    first = -(-prod(source) // per_host) * per_host
    hosts = -(-(first + prod(target)) // per_host)
    if hosts > cluster.hosts:
        raise RhinoError(
            f"the meshes take {hosts} hosts of {per_host} devices, but cluster {cluster.name} has {cluster.hosts}",
            f"use {cluster.base_name}:{hosts}, or smaller meshes",
        )

    def tiles(option: str, mesh: tuple[int, ...], spec: str, start: int) -> tuple[Tile, ...]:
        try:
            found = spec_tiles(shape, mesh, parse_spec(spec), start)
        except RhinoError as error:
            raise RhinoError(f"{option}: {error.message}", error.remedy) from error
        # The n-th device in use is this one of the cluster.
        return tuple(
            Tile(tile.device // per_host * cluster.devices_per_host + tile.device % per_host, tile.slice)
            for tile in found
        )

    tensor = MovedTensor(
        shape,
        ceil(dtype_bytes(element)),  # an element of less than a byte travels as one
        tiles("--src-spec", source, args.src_spec, 0),
        tiles("--dst-spec", target, args.dst_spec, first),
    )
    devices = [tile.device for tile in (*tensor.source, *tensor.target)]
    return _Request(tensor, network_of(cluster, devices), args.chunks)


def _sizes(text: str, separator: str, option: str, least: int) -> tuple[int, ...]:
    words = text.split(separator) if text.strip() else []
    try:
        found = tuple(int(word) for word in words)
    except ValueError:
        found = (-1,)
    # A tensor may be a scalar, a mesh always has devices.
    if any(size < least for size in found) or (least and not found):
        example = "2x4" if separator == "x" else "1024,1024,512"
        raise RhinoError(f"{option} {text!r} is not a list of sizes", f"give numbers such as {example}")
    return found


def _element(text: str) -> str:
    """The element type that --dtype names."""
    found = element_type(text)
    if found is None:
        raise RhinoError(f"--dtype {text!r} is no element type", "give f32, bf16, i32, ui8, f8E4M3FN, i1, complex<f32>")
    return found


def _others(request: _Request, plan: ReshardPlan) -> list[ReshardPlan]:
    """Every strategy with the scheduler asked for, then broadcasts with every scheduler."""
    wanted = [(strategy, plan.scheduler) for strategy in STRATEGIES]
    wanted += [("broadcast", scheduler) for scheduler in SCHEDULERS]
    made = {(plan.strategy, plan.scheduler): plan}
    for key in dict.fromkeys(wanted):
        if key not in made:
            made[key] = request.plan(*key)
    return [made[key] for key in dict.fromkeys(wanted)]


def _json(args: argparse.Namespace, plan: ReshardPlan, others: Sequence[ReshardPlan]) -> dict[str, Any]:
    position = {unit: order for order, unit in enumerate(plan.order)}
    bounds = plan.bounds
    data: dict[str, Any] = {
        "schema": 1,
        "strategy": plan.strategy,
        "scheduler": plan.scheduler,
        "chunks": plan.chunks,
        "makespan_s": float(plan.makespan_s),
        "bound_s": float(plan.bound_s),
        "bounds": {name: float(getattr(bounds, name)) for name in ("recv", "send", "relay", "unit")},
        "gap": float(plan.gap),
        "bytes": sum(unit.nbytes for unit in plan.units),
        "hosts": [{"host": host, "sends": sent, "receives": got} for host, (sent, got) in _traffic(plan).items()],
        "units": [
            {
                "slice": [list(bounds) for bounds in unit.slice],
                "holders": list(unit.holders),
                "receivers": list(unit.receivers),
                "sender": max(plan.senders[unit.index], key=lambda sender: sender[2])[1],
                "senders": [[device, nbytes] for _, device, nbytes in plan.senders[unit.index]],
                "start_s": float(plan.starts[unit.index]),
                "order": position[unit.index],
            }
            for unit in plan.units
        ],
    }
    if others:
        data["comparison"] = [
            {
                "strategy": other.strategy,
                "scheduler": other.scheduler,
                "makespan_s": float(other.makespan_s),
                "over_bound": float(1 + other.gap),
            }
            for other in others
        ]
    return data


def _traffic(plan: ReshardPlan) -> dict[int, tuple[int, int]]:
    """By host, bytes it sends to and receives from other hosts."""
    sent: dict[int, int] = {}
    got: dict[int, int] = {}
    sizes = plan.program.bundle_bytes
    for phase in plan.program.phases:
        for hop in (hop for step in phase.steps for hop in step.hops):
            size = sizes[hop.bundle]
            starts = (hop.start + hop.stride * chunk for chunk in range(phase.chunks))
            moved = sum(max(0, min(size, start + hop.length) - start) for start in starts)
            sent[hop.source] = sent.get(hop.source, 0) + moved
            got[hop.target] = got.get(hop.target, 0) + moved
    return {host: (sent.get(host, 0), got.get(host, 0)) for host in plan.program.hosts}


def _print(args: argparse.Namespace, request: _Request, plan: ReshardPlan, others: Sequence[ReshardPlan]) -> None:
    from rich.console import Console

    # A pipe has no width: give it the room that the tables ask for, so that lines stay whole.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=140)
    ways = f"{args.src_mesh} {args.src_spec} -> {args.dst_mesh} {args.dst_spec}"
    tensor = type_text(_element(args.dtype), request.tensor.shape)
    console.print(f"{tensor}, {_bytes(request.tensor.nbytes)}: {ways}", style="bold", markup=False)
    console.print(
        f"{plan.strategy}, {plan.scheduler}: {_seconds(plan.makespan_s)}; no less than {_seconds(plan.bound_s)} "
        f"(receiving {_seconds(plan.bounds.recv)}, sending {_seconds(max(plan.bounds.send, plan.bounds.relay))}; "
        f"largest unit {_seconds(plan.bounds.unit)})"
    )
    console.print(_certificate(request, plan))
    if others:
        table = _table(("strategy", "scheduler"), ("makespan", "over bound"))
        for other in others:
            over = f"{float(1 + other.gap):.4g}" if other.bound_s else ""
            table.add_row(other.strategy, other.scheduler, _seconds(other.makespan_s), over)
        console.print(table)
    traffic = _traffic(plan)
    if traffic:
        table = _table((), ("host", "sends", "receives"))
        for host, (sent, got) in traffic.items():
            table.add_row(str(host), _bytes(sent), _bytes(got))
        console.print(table)
    table = _table((), ("order", "start"), ("slice", "sender", "holders", "receivers"))
    for order, index in enumerate(plan.order[:_UNITS_SHOWN]):
        unit = plan.units[index]
        senders = ", ".join(str(device) for _, device, _ in plan.senders[index])
        where = ", ".join(f"{start}:{stop}" for start, stop in unit.slice)
        table.add_row(
            str(order), _seconds(plan.starts[index]), where, senders, _devices(unit.holders), _devices(unit.receivers)
        )
    console.print(table, markup=False)
    if len(plan.units) > _UNITS_SHOWN:
        console.print(f"and {len(plan.units) - _UNITS_SHOWN} more units")


def _certificate(request: _Request, plan: ReshardPlan) -> str:
    """What the bound proves of the plan."""
    if not plan.bound_s:
        return "nothing crosses between hosts"
    if not plan.gap:
        return "at the lower bound: no schedule is faster"
    if request.network.latency_s and request.chunks is None:
        instant = replace(request, network=replace(request.network, latency_s=Fraction(0)))
        if not instant.plan(plan.strategy, plan.scheduler).gap:
            return f"at the lower bound but for latency, which adds {float(plan.gap):.2%}"
    return f"{float(plan.gap):.2%} above the lower bound: at most so much could be saved"


def _table(texts: Sequence[str], numbers: Sequence[str], rest: Sequence[str] = ()) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    for name in rest:
        table.add_column(name)
    return table


def _devices(devices: Sequence[int]) -> str:
    """Numbers, with runs of them as 4-7."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _seconds(seconds: Fraction) -> str:
    value = float(seconds)
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e6:.4g} us" if value else "0"


def _bytes(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.4g} {unit}"
    return f"{count} B"
