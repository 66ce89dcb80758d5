"""Where a parameter and its update part: two decisions, though the update reads the parameter element by element.

Owns which operations update a parameter, and where these read what the model reads too (docs/design/search.md,
"Updates"). Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.program.data import Graph
from rhino.program.operations import PLACEMENT

# Of the parameters' bytes, those whose updates a search lays out for themselves where there are many: biases and the
# like would not matter. In a loop over layers they do: each of their collectives starts in every trip.
LARGE, MANY = 0.99, 128


def parted_share(graph: Graph) -> float:
    """Of the parameters' bytes, those whose updates a search lays out for themselves.

    What was given may lay any parameter out otherwise than its update.
    """
    many = sum(a.role == "param" for a in graph.arguments) > MANY
    return LARGE if many and not graph.pins else 1.0


@dataclass(frozen=True, slots=True)
class Update:
    """How a step makes a parameter's next value, with optimizer state.

    Attributes:
      parameter: the argument's value.
      result: its next value, which the step returns in the argument's buffer.
      reads: operands of the update, as (op, position), that are the parameter or made of it for the model, too.
    """

    parameter: int
    result: int
    reads: tuple[tuple[int, int], ...]


def updates(graph: Graph, roles: Sequence[str], free: Sequence[bool], part: float = 1.0) -> list[Update]:
    """The updates of a program whose parameter and state need not be laid out alike.

    Args:
      roles: of operations, as `wiring.wire` has them.
      free: of values, whether any layout suits them.
      part: of the bytes of all parameters, those whose updates matter, the largest first, and those as large.
    """
    sizes = sorted((graph.values[a.value].nbytes for a in graph.arguments if a.role == "param"), reverse=True)
    wanted, least = part * sum(sizes), 0
    for nbytes in sizes if part < 1 else ():
        if wanted <= 0:
            break
        wanted, least = wanted - nbytes, nbytes
    found = _updates(graph, roles, free) if part > 0 else ()
    return [update for update in found if graph.values[update.parameter].nbytes >= least]


def _updates(graph: Graph, roles: Sequence[str], free: Sequence[bool]) -> Iterator[Update]:
    state = {a.value for a in graph.arguments if a.role == "opt_state" and a.alias >= 0}
    for op in graph.ops if graph.hosted and state else ():
        # On its way from the memory of the host.
        if op.name == "stablehlo.optimization_barrier" or op.tag == PLACEMENT:
            pairs = zip(op.operands, op.results, strict=True)
            state.update(made for read, made in pairs if read in state and read in graph.hosted)
    users = graph.users() if state else []
    for argument in graph.arguments:
        if argument.role != "param" or argument.alias < 0 or not state:
            continue
        p, result = argument.value, graph.outputs[argument.alias]
        if free[p] or free[result] or graph.outputs.count(result) > 1:
            continue
        if result in graph.pins and graph.pins[result][0].startswith("result "):
            continue  # given otherwise than the argument whose buffer it takes: an error where the two are one decision
        ops = _updating(graph, roles, result)
        if not any(v in state for o in ops for v in graph.ops[o].operands):
            continue
        shared = _shared(graph, free, users, ops, p)
        if p in shared:
            reads = [
                (o, slot)
                for o in ops
                if graph.ops[o].results[0] not in shared
                for slot, v in enumerate(graph.ops[o].operands)
                if v in shared
            ]
            yield Update(p, result, tuple(reads))


def _updating(graph: Graph, roles: Sequence[str], result: int) -> list[int]:
    """The element-wise operations behind a result, outside of loops and branches, in program order."""
    shape = graph.values[result].shape
    found: set[int] = set()
    pending = [result]
    while pending:
        v = pending.pop()
        o = graph.values[v].producer
        if o < 0 or o in found or graph.values[v].shape != shape:
            continue
        op = graph.ops[o]
        if op.parent < 0 and roles[o] == "merge" and op.rule is not None and len(op.results) == 1:
            # Element by element: neither transposed, reshaped nor cut.
            whole = op.rule.results[0]
            if all(dims == whole for v, dims in zip(op.operands, op.rule.operands, strict=True) if dims):
                found.add(o)
                pending.extend(op.operands)
    return sorted(found)


def _shared(graph: Graph, free: Sequence[bool], users: Sequence[Sequence[int]], ops: Sequence[int], p: int) -> set[int]:
    """Of a parameter and what an update makes of it alone, what others than the update read, or is on the way to that.

    Empty where nothing but the update reads the parameter.
    """
    updating = set(ops)
    made = [p]
    for o in ops:
        op = graph.ops[o]
        if set(op.operands) & set(made) and all(v in made or free[v] or not graph.values[v].shape for v in op.operands):
            made.append(op.results[0])
    shared: set[int] = set()
    for v in reversed(made):
        if any(o not in updating or graph.ops[o].results[0] in shared for o in users[v]):
            shared.add(v)
    return shared
