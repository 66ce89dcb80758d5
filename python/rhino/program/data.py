"""Values, operations and arguments of one program, flat and indexed by integers.

Owns the data model only. Built by `rhino.ir.import_graph` from MLIR, or by hand in tests; knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from math import prod
from typing import Any, TypeVar

from rhino.program.element_types import dtype_bytes
from rhino.schema.kinds import Int, ListOf, String
from rhino.schema.records import described, record, told

_NUMBERS = ListOf(Int(0))
Fact = TypeVar("Fact")
# Mesh axes per dimension, outermost first.
Dims = tuple[tuple[str, ...], ...]


@dataclass(slots=True, frozen=True)
class Rule:
    """Shardy's factor mapping of an op: every operand and result dimension is a list of factors, major first.

    `reduction` factors leave the result partial when sharded; `replicate` factors must not be sharded
    (one in both is summed, but not by several devices); `permutation` factors can be sharded at the price of a
    collective-permute.
    """

    factor_sizes: tuple[int, ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    reduction: tuple[int, ...] = ()
    replicate: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()
    entire: tuple[int, ...] = ()


# A result up to this size that the next step does not take, such as a loss, is made whole in every process.
SMALL_RESULT_BYTES = 2**20


@dataclass(slots=True)
class Value:
    """One tensor, whose shape and type stay: `elements` and `nbytes` are kept because the search asks for them often.

    `producer` is its op's index, -1 for arguments; `loop` the innermost enclosing while op, or -1.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    producer: int
    loop: int = -1
    elements: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.elements = prod(self.shape)
        self.nbytes = int(self.elements * dtype_bytes(self.dtype))


@described
class KernelMemory:
    """Memory that a kernel takes while it runs."""

    factors: tuple[int, ...] = told(_NUMBERS, "the factors that divide them")
    nbytes: int = told(Int(0), "bytes besides operands and results, undivided", key="bytes")


@described
class Kernel:
    """What one execution of a call whose insides nobody sees costs, with whole operands: `rhino.kernel`."""

    name: str = told(String(), "entry of the table of kernels, or the call's target")
    flops: int = told(Int(0), "floating-point operations with whole operands")
    nbytes: int = told(Int(0), "bytes read and written with whole operands", key="bytes")
    dtype: str = told(String(), "element type whose rate its arithmetic has", key="type")
    rate: str = told(String(), "what limits its arithmetic: tensor, vector, attention, ..")
    sums: tuple[int, ...] = told(
        _NUMBERS, "factors that some results have, and that are summed in the others", when="sums", default=()
    )
    # What a plan says of a call makes it no other kernel.
    split: tuple[tuple[str, ...], ...] | None = told(
        ListOf(ListOf(String())),
        "axes that split each factor, as a plan has it",
        default=None,
        compare=False,
        repr=False,
    )
    maxima: tuple[int, ...] = told(
        _NUMBERS, "results that are the largest value over everything", when="maxima", default=()
    )
    ordered: tuple[int, ...] = told(
        _NUMBERS, "factors of which a device has to know where its part begins", when="ordered", default=()
    )
    held: tuple[KernelMemory, ...] = told(
        ListOf(record(KernelMemory)), "memory that it takes while it runs", when="held", default=()
    )
    replicated: str = told(String(), "why every device computes all of it", when="replicated", default="")


@dataclass(slots=True, frozen=True)
class Sent:
    """One collective of a body: the op there, its kind, the axes over which it sends, bytes of the full tensor."""

    op: int
    kind: str
    axes: tuple[str, ...]
    nbytes: int


@dataclass(slots=True, frozen=True)
class Manual:
    """A computation written for one device of a mesh: the axes it takes, and what it leaves to a plan.

    Attributes:
      taken: (axis, factor of the op's rule) of each axis it uses by itself; -1 where that axis splits nothing.
      free: factors that the body handles like a batch: other axes may split them.
      body: what one device does, in a device's shapes; its arguments and outputs are the op's operands and results.
      places: per value of the body and dimension the free factor, -1 where there is none.
      sent: the body's collectives.
      key: the same for equal computations.
    """

    taken: tuple[tuple[str, int], ...]
    free: tuple[int, ...]
    key: str
    body: Graph = field(compare=False, repr=False)
    places: tuple[tuple[int, ...], ...] = field(compare=False, repr=False)
    sent: tuple[Sent, ...] = field(compare=False, repr=False)

    def ways(self, rule: Rule) -> int:
        """Into how many parts its axes split what it computes."""
        return prod(rule.factor_sizes[f] for _, f in self.taken if f >= 0 and f not in self.free)


@dataclass(frozen=True, slots=True)
class Convolved:
    """Which convolution an operation is: forward (`of` nothing), or the gradient of the "image" or of the "kernel".

    `features` are the image's, of one group, and `turned` whether the kernel that is read or made has them and the
    output features in another order than output, positions, features.
    """

    of: str
    features: int
    turned: bool


@dataclass(slots=True)
class Op:
    """One operation. Ops of a region follow their parent in `Graph.ops`, up to the parent's `region_end`.

    `trips` is how often the op runs in one step: the product of the `iterations` of the enclosing loops. For a `while`,
    `iterations` is how often its body runs, 1 where that is not known, and `ties` lists groups of values that are one
    buffer: operand, block arguments, yielded value and result. `tag` is what else tells ops of one name apart: "splat"
    or "dense", the kinds of a reduction, the target of a call.
    A manual computation is one op, with a rule of its own; what is inside it is in `manual`.
    `local` is the factor of the rule that are the local sums it makes, -1 for none: it reads examples as they are
    before a reshape (tag "apart") gives these a dimension.
    """

    index: int
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule | None
    flops: int = 0
    trips: int = 1
    parent: int = -1
    region_end: int = -1
    ties: tuple[tuple[int, ...], ...] = ()
    where: str = ""
    tag: str = ""
    iterations: int = 0
    kernel: Kernel | None = None
    manual: Manual | None = None
    local: int = -1
    convolved: Convolved | None = None


# Roles of what a step keeps and returns.
STATE = ("param", "opt_state")


@dataclass(slots=True)
class Argument:
    """One @main argument.

    `alias` is the index of the output that reuses its buffer, or -1; `donated` without alias is a plain donor.
    """

    value: int
    name: str
    role: str = "other"
    donated: bool = False
    alias: int = -1


@dataclass(frozen=True, slots=True)
class Loose:
    """What a given sharding leaves open.

    Attributes:
      dims: by dimension, whether further axes may split it.
      axes: of the mesh it was written for; others are free.
      whole: axes that split no dimension in any case.
    """

    dims: tuple[bool, ...]
    axes: tuple[str, ...]
    whole: tuple[str, ...] = ()


@dataclass(slots=True)
class Graph:
    """The whole program. `outputs` are the value indices @main returns, in order.

    `pins` are the shardings the user fixed, by value: what to call the value in messages, and its axes per dimension;
    `loose` what those of them that do not fix everything leave open.
    `stages` are the pipeline stages that state is pinned to, by value; `stage_pins` by stage what is `pins` there, and
    `shared_out` the dimension of state of which each replica of its stage keeps a part.
    `microbatch_loop` is the loop over micro-batches (`rhino.microbatches`), or -1.
    `hosted` are values in the memory of the host: they take none of a device.
    `axes` are those, with their sizes, that a mesh of the program must have, next to each other and in this order.
    """

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    pins: dict[int, tuple[str, Dims]] = field(default_factory=dict)
    loose: dict[int, Loose] = field(default_factory=dict)
    stages: dict[int, int] = field(default_factory=dict)
    stage_pins: dict[int, dict[int, tuple[str, Dims]]] = field(default_factory=dict)
    shared_out: dict[int, int] = field(default_factory=dict)
    microbatch_loop: int = -1
    hosted: set[int] = field(default_factory=set)
    axes: tuple[tuple[str, int], ...] = ()
    _facts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def microbatches(self) -> int:
        """How often the loop over micro-batches runs; 1 without one."""
        return max(1, self.ops[self.microbatch_loop].iterations) if self.microbatch_loop >= 0 else 1

    def fact(self, find: Callable[..., Fact], *given: Hashable) -> Fact:
        """What a function finds in the operations, found once: they stay as they are when a program has been read.

        Args:
          given: its arguments after the graph.
        """
        key = find, given
        if key not in self._facts:
            self._facts[key] = find(self, *given)
        found: Fact = self._facts[key]
        return found

    def users(self) -> Sequence[Sequence[int]]:
        """For each value, the indices of the ops that read it, in program order."""
        return self.fact(_users)

    def producer(self, v: int) -> Op | None:
        """The op that makes a value; None of an argument, the program's or a block's."""
        at = self.values[v].producer
        return self.ops[at] if at >= 0 else None


def _users(graph: Graph) -> Sequence[Sequence[int]]:
    users: list[list[int]] = [[] for _ in graph.values]
    for op in graph.ops:
        for v in dict.fromkeys(op.operands):
            users[v].append(op.index)
    return users


def once(find: Callable[[Graph], Fact]) -> Callable[[Graph], Fact]:
    """The function, so that it looks at each graph once; what it returns is read only."""

    @wraps(find)
    def known(graph: Graph) -> Fact:
        return graph.fact(find)

    return known
