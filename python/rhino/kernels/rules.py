"""Sharding rules as text: "b s (n d), e -> b s n": the language of `jax.custom_partitioning`, read into a `Rule`.

Owns the language and its errors. Knows no kernel.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rhino.errors import RhinoError
from rhino.kernels.data import KernelTensor
from rhino.program.data import Rule

# Per dimension its factors, major first.
Mapping_ = tuple[tuple[str, ...], ...]

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d_]\w*)|(?P<dots>\.\.\.\d*)|(?P<mark>[(),]))")


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule before it is met with shapes. An entry of `("...0",)` stands for any number of leading dimensions."""

    text: str
    operands: tuple[Mapping_, ...]
    results: tuple[Mapping_, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every factor, in the order in which the text names it first; leading dimensions left out."""
        found = dict.fromkeys(f for m in (*self.operands, *self.results) for dim in m for f in dim)
        return tuple(f for f in found if not f.startswith("..."))


def parse_rule(text: str) -> RuleText:
    """Reads `operands -> results`: values separated by commas, one factor per dimension.

    Several factors of one dimension are in brackets, major first; "..." in front, or "...1", "...2", stands for leading
    dimensions that values share.

    Raises:
      RhinoError: the text is not a rule, or Shardy has no such rules; names the part that is wrong.
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise RhinoError(
            f"rule '{text}' has {len(sides) - 1} arrows, and one is needed",
            "write 'b s d, d e -> b s e': operands -> results",
        )
    operands, results = (tuple(_values(side, text)) for side in sides)
    return RuleText(text, operands, results)


def _values(side: str, text: str) -> list[Mapping_]:
    values: list[list[tuple[str, ...]]] = [[]]
    group: list[str] | None = None
    at = 0
    side = side.rstrip()
    while at < len(side):
        found = _TOKEN.match(side, at)
        if found is None:
            raise RhinoError(
                f"rule '{text}': '{side[at:].strip()[:12]}' is no factor",
                "a factor is a letter, then letters, digits and underscores",
            )
        at = found.end()
        if name := found["name"]:
            if group is None:
                values[-1].append((name,))
            else:
                group.append(name)
        elif dots := found["dots"]:
            if values[-1] or group is not None:
                raise RhinoError(f"rule '{text}': '...' is not in front of a value's dimensions")
            values[-1].append((f"...{int(dots[3:] or 0)}",))
        elif found["mark"] == "(":
            if group is not None:
                raise RhinoError(f"rule '{text}': brackets inside brackets")
            group = []
        elif found["mark"] == ")":
            if group is None or len(group) < 2:
                what = (
                    "closes a bracket that is not open"
                    if group is None
                    else "closes a bracket with fewer than two factors"
                )
                raise RhinoError(f"rule '{text}': ')' {what}")
            values[-1].append(tuple(group))
            group = None
        elif group is not None:
            raise RhinoError(f"rule '{text}': a bracket is not closed before ','")
        else:
            values.append([])
    if group is not None:
        raise RhinoError(f"rule '{text}': a bracket is not closed")
    for value in values:
        factors = [f for dim in value for f in dim]
        for f in factors:
            if factors.count(f) > 1:
                raise RhinoError(f"rule '{text}': factor '{f}' stands twice in one value", "name each dimension anew")
    return [tuple(value) for value in values]


def fit_ranks(rule: RuleText, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> RuleText:
    """The rule with a factor for each dimension: "..." expanded, "v0", "v1", .. for those that `jax.vmap` put in front.

    Raises:
      RhinoError: the rule has another number of values, or more dimensions than one of them.
    """
    sides = []
    for what, mappings, shapes in (("operand", rule.operands, operands), ("result", rule.results, results)):
        if len(mappings) != len(shapes):
            raise RhinoError(f"rule '{rule.text}' has {len(mappings)} {what}s, and the kernel has {len(shapes)}")
        side = []
        for i, (mapping, shape) in enumerate(zip(mappings, shapes, strict=True)):
            found = _expanded(rule, mapping, len(shape), f"{what} {i}", vmapped=True)
            side.append(found)
        sides.append(tuple(side))
    return RuleText(rule.text, sides[0], sides[1])


def make_rule(
    rule: RuleText | str,
    operands: Sequence[KernelTensor],
    results: Sequence[KernelTensor],
    *,
    reduction: Collection[str] = (),
    whole: Collection[str] = (),
    permutation: Collection[str] = (),
    made: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> tuple[Rule, tuple[str, ...]]:
    """The rule for operands and results of given shapes, and the names of its factors.

    A factor that results lack would leave each part with a result of its own. Unless it is in `reduction` (the parts
    are added up) it may not be split; nor may one that operands lack, unless it is in `made` (a device makes its part).

    Args:
      reduction, whole, permutation, made: names of such factors.
      sizes: of factors that are only in brackets.

    Raises:
      RhinoError: the rule does not have the ranks of these values, or their sizes contradict each other.
    """
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    sides = []
    for what, mappings, tensors in (("operand", parsed.operands, operands), ("result", parsed.results, results)):
        # An empty side is one scalar, or nothing at all.
        if not tensors and mappings == ((),):
            mappings = ()
        if len(mappings) != len(tensors):
            raise RhinoError(f"rule '{parsed.text}' has {len(mappings)} {what}s, and the call has {len(tensors)}")
        sides.append(
            [
                _expanded(parsed, m, len(t.shape), f"{what} {i}")
                for i, (m, t) in enumerate(zip(mappings, tensors, strict=True))
            ]
        )
    _check_leading(parsed, [*zip(parsed.operands, operands, strict=False), *zip(parsed.results, results, strict=False)])
    known = _sizes(parsed, [*zip(sides[0], operands, strict=True), *zip(sides[1], results, strict=True)], sizes or {})
    names = tuple(known)
    for kind, given in (("reduction", reduction), ("whole", whole), ("permutation", permutation)):
        for name in given:
            if name not in known:
                raise RhinoError(f"rule '{parsed.text}' has no factor '{name}', which is said to be {kind}")
    number = {name: i for i, name in enumerate(names)}

    def mapped(side: Sequence[Mapping_]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(tuple(number[f] for f in dim) for dim in m) for m in side)

    reads, makes = ({f for m in side for dim in m for f in dim} for side in sides)
    # Of placeholders without elements there are no parts.
    kept = {f for f in names if not known[f]}
    kept |= {f for f in names if f not in reduction and (f not in (*reads, *made) or f not in makes)}
    replicate = tuple(number[f] for f in names if f in whole or f in kept)
    return Rule(
        factor_sizes=tuple(known.values()),
        operands=mapped(sides[0]),
        results=mapped(sides[1]),
        reduction=tuple(number[f] for f in names if f in reduction),
        replicate=replicate,
        permutation=tuple(number[f] for f in names if f in permutation),
    ), names


def whole_rule(operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> tuple[Rule, tuple[str, ...]]:
    """The rule of what cannot be split at all: every dimension has a factor of its own, which stays whole."""
    sizes = [size for shape in (*operands, *results) for size in shape]
    numbers = iter(range(len(sizes)))
    reads, makes = (tuple(tuple((next(numbers),) for _ in shape) for shape in side) for side in (operands, results))
    rule = Rule(tuple(sizes), tuple(reads), tuple(makes), replicate=tuple(range(len(sizes))))
    return rule, tuple(f"f{i}" for i in range(len(sizes)))


def _expanded(rule: RuleText, mapping: Mapping_, rank: int, what: str, vmapped: bool = False) -> Mapping_:
    """The mapping with "..." replaced by as many factors as the value has dimensions more."""
    if not mapping or not mapping[0][0].startswith("..."):
        if len(mapping) != rank and not (vmapped and len(mapping) < rank):
            raise RhinoError(f"rule '{rule.text}' gives {what} {len(mapping)} dimensions, and it has {rank}")
        return (*((f"v{i}",) for i in range(rank - len(mapping))), *mapping)
    more = rank - (len(mapping) - 1)
    if more < 0:
        raise RhinoError(f"rule '{rule.text}' gives {what} at least {len(mapping) - 1} dimensions, and it has {rank}")
    return (*((f"{mapping[0][0]}_{i}",) for i in range(more)), *mapping[1:])


def _check_leading(rule: RuleText, values: Sequence[tuple[Mapping_, KernelTensor]]) -> None:
    """The same "..." stands for as many dimensions everywhere."""
    counts: dict[str, int] = {}
    for mapping, tensor in values:
        if mapping and mapping[0][0].startswith("..."):
            count = len(tensor.shape) - len(mapping) + 1
            if counts.setdefault(mapping[0][0], count) != count:
                raise RhinoError(
                    f"rule '{rule.text}': '...' stands for {counts[mapping[0][0]]} leading dimensions and for {count}",
                    "write ...1 and ...2 where they are not the same ones",
                )


def _sizes(rule: RuleText, values: Sequence[tuple[Mapping_, KernelTensor]], given: Mapping[str, int]) -> dict[str, int]:
    """The size of every factor, in the order of the rule."""
    known: dict[str, int] = {}
    for mapping, tensor in values:
        for dim, size in zip(mapping, tensor.shape, strict=True):
            for f in dim:
                known.setdefault(f, given.get(f, 0))
            if len(dim) == 1:
                (f,) = dim
                if known[f] not in (0, size) or (f in given and given[f] != size):
                    raise RhinoError(f"rule '{rule.text}': factor '{f}' has sizes {known[f] or given[f]} and {size}")
                known[f] = size
    for mapping, tensor in values:
        for dim, size in zip(mapping, tensor.shape, strict=True):
            unknown = [f for f in dim if not known[f]]
            rest = prod(known[f] for f in dim if known[f])
            if len(unknown) == 1 and size and size % rest == 0:
                known[unknown[0]] = size // rest
    for mapping, tensor in values:
        for dim, size in zip(mapping, tensor.shape, strict=True):
            if len(dim) > 1 and prod(known[f] for f in dim) != size:
                text = " x ".join(f"{f}={known[f] or '?'}" for f in dim)
                raise RhinoError(
                    f"rule '{rule.text}': a dimension of size {size} is not {text}", "give the sizes of its factors"
                )
    return known
