"""Random gathers and scatters, batching dims and windows of every kind."""

from __future__ import annotations

from math import prod

from bench.differential.gen import ANY, NUMBERS, Gen, Unsuitable, array
from bench.differential.ops_sums import Reducer
from bench.differential.program import Value, is_integer


class _Numbers:
    """Dimension numbers of a gather from `v`, or of the scatter that undoes it."""

    def __init__(self, g: Gen, v: Value) -> None:
        rank = len(v.shape)
        roles = ["batching" if g.maybe(20) else g.one(("collapsed", "window", "window", "whole")) for _ in range(rank)]
        self.batching = [d for d in range(rank) if roles[d] == "batching"]
        self.collapsed = [d for d in range(rank) if roles[d] == "collapsed" and v.shape[d] > 0]
        self.sizes = []
        for d in range(rank):
            if d in self.batching:
                self.sizes.append(min(1, v.shape[d]))
            elif d in self.collapsed:
                self.sizes.append(1)
            else:
                self.sizes.append(v.shape[d] if roles[d] == "whole" or not v.shape[d] else g.whole(1, v.shape[d]))
        indexed = [d for d in range(rank) if d not in self.batching and (roles[d] != "whole" or g.maybe(20))]
        indexed = [indexed[i] for i in g.order(len(indexed))]
        self.indexed = indexed
        places = list(g.shape(most=2, room=24))
        at = [g.whole(0, len(places)) for _ in self.batching]
        # The batching dims of the indices, anywhere among the others.
        labels: list[int] = [-1] * len(places)
        for d, where in zip(self.batching, at, strict=True):
            labels.insert(where, d)
            places.insert(where, v.shape[d])
        self.batches = tuple(places)
        self.index_dim = g.whole(0, len(places))
        if len(indexed) == 1 and g.maybe(30):
            self.index_dim = len(places)
            self.shape = tuple(places)
        else:
            self.shape = (*places[: self.index_dim], len(indexed), *places[self.index_dim :])
        of = [labels.index(d) for d in self.batching]
        self.index_batching = [p + (p >= self.index_dim and len(self.shape) > len(places)) for p in of]
        self.window = [d for d in range(rank) if d not in self.batching and d not in self.collapsed]
        total = len(places) + len(self.window)
        self.offsets = sorted(g.order(total)[: len(self.window)]) if g.maybe() else list(range(len(places), total))
        result, w, b = [], iter(self.sizes[d] for d in self.window), iter(places)
        for i in range(total):
            result.append(next(w) if i in self.offsets else next(b))
        self.result = tuple(result)
        if prod(self.result) > 8192:
            raise Unsuitable

    def indices(self, g: Gen) -> Value:
        return g.value((g.one(("i32", "i32", "i64", "ui32")),), shape=self.shape, where=lambda v: v.bound <= 200)


def gather(g: Gen) -> None:
    v = g.value(ANY, least=1)
    n = _Numbers(g, v)
    numbers = (
        f"offset_dims = {n.offsets}, collapsed_slice_dims = {n.collapsed}, operand_batching_dims = {n.batching}, "
        f"start_indices_batching_dims = {n.index_batching}, start_index_map = {n.indexed}, "
        f"index_vector_dim = {n.index_dim}"
    )
    text = f"{{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = {array(n.sizes)}}}"
    g.emit("stablehlo.gather", [v, n.indices(g)], [(n.result, v.dtype, v.bound, v.error)], text)


def scatter(g: Gen) -> None:
    """With what combines in any order; replacing only where no place is written twice."""
    v = g.value((*NUMBERS, "i1"), least=1)
    n = _Numbers(g, v)
    if not n.indexed:
        raise Unsuitable  # of many updates of one element XLA's CPU back end loses some, on one device too (0.10.2)
    if n.shape != n.batches and g.maybe(20):
        return _replace_rows(g)
    if is_integer(v.dtype):
        name = g.one(("add", "multiply", "maximum", "minimum", "or", "and", "xor"))
    else:
        name = g.one(("or", "and", "xor") if v.dtype == "i1" else ("add", "add", "maximum", "minimum"))
    how = Reducer(name, v.dtype)
    updates = g.value((v.dtype,), shape=n.result)
    result = how.result(updates, v, max(1, prod(n.batches)))
    _emit(g, v, n, updates, n.indices(g), how.region(g.fresh()[1:]), result)
    return None


def _emit(
    g: Gen, v: Value, n: _Numbers, updates: Value, indices: Value, region: str, result: tuple[str, float, float]
) -> None:
    numbers = (
        f"update_window_dims = {n.offsets}, inserted_window_dims = {n.collapsed}, input_batching_dims = {n.batching}, "
        f"scatter_indices_batching_dims = {n.index_batching}, scatter_dims_to_operand_dims = {n.indexed}, "
        f"index_vector_dim = {n.index_dim}"
    )
    text = f"{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}"
    g.emit("stablehlo.scatter", [v, indices, updates], [(v.shape, *result)], text, [region])


def _replace_rows(g: Gen) -> None:
    """Rows replaced, each at most once."""
    v = g.value(ANY, least=1, most=3)
    count = g.whole(1, max(1, v.shape[0]))
    at = g.emit("stablehlo.iota", [], [((count, 1), "i32", float(count), 0.0)], "{iota_dimension = 0 : i64}")[0]
    updates = g.value((v.dtype,), shape=(count, *v.shape[1:]))
    kind, u = f"tensor<{v.dtype}>", g.fresh()[1:]
    region = f'{{\n^bb0(%a{u}: {kind}, %b{u}: {kind}):\n  "stablehlo.return"(%b{u}) : ({kind}) -> ()\n}}'
    numbers = (
        f"update_window_dims = {list(range(1, len(v.shape)))}, inserted_window_dims = [0], "
        "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    )
    unique = "true" if g.maybe() else "false"
    text = f"{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = {unique}}}"
    result = (v.shape, v.dtype, max(v.bound, updates.bound), max(v.error, updates.error))
    g.emit("stablehlo.scatter", [v, at, updates], [result], text, [region])


ALL = (gather, gather, scatter, scatter)
