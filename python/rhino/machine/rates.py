"""What kernels of a device take: products by shape, fused attention, and the least time of any kernel.

Owns the model of docs/design/cost-model.md, "Products" and "Attention"; `rhino.machine.fit` finds its parameters.
Knows one device: no programs, no meshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from rhino.program.work import Work
from rhino.schema.kinds import Float, Int, MapOf
from rhino.schema.records import described, record, told

# Side of the square tiles in which work is counted. It is a unit of the fit, not what a library chooses; but a product
# smaller than a tile takes as long as one, so on CPUs tiles are as small as what their inner loops make at once.
TILE = 64
CPU_TILE = 16
# Rates are of these types; f8 stands for all of 8 bits and fewer.
DTYPES = ("f64", "f32", "tf32", "bf16", "f16", "f8", "i8")
_SECONDS = Float(0)
# Kernels do not cut sums into shorter parts: up to here the fit, which knows no parts, is as good as it is anywhere.
_LEAST_PART = 4096


@described
class ProductRates:
    """Seconds of `batch` products of [rows, depth] by [depth, columns] of one element type.

    `start_s + tile_s w + tile_depth_s w depth + depth_s depth`, where w is the number of square tiles that each
    multiprocessor makes, at least 1: fewer tiles leave the others idle. Where they would, long sums are cut into parts,
    which are added up by another kernel.
    """

    start_s: float = told(_SECONDS, "the seconds that the smallest product takes")
    tile_s: float = told(_SECONDS, "the seconds of a tile on every multiprocessor, besides its sums")
    tile_depth_s: float = told(_SECONDS, "the seconds of one element of each sum of such a tile")
    depth_s: float = told(_SECONDS, "the seconds of one element of the sums, however many tiles there are")
    tile: int = told(Int(1), "the side of a tile", default=TILE)

    def seconds(self, batch: float, rows: float, columns: float, depth: float, multiprocessors: int) -> float:
        """Seconds of products of these sizes, which may be a device's shares of whole ones and so not whole."""
        return self.start_s + self.working_s(batch, rows, columns, depth, multiprocessors)

    def working_s(self, batch: float, rows: float, columns: float, depth: float, multiprocessors: int) -> float:
        """The same without the start."""
        tiles = batch * ceil(rows / self.tile) * ceil(columns / self.tile)
        parts = max(1, min(int(depth / _LEAST_PART), int(multiprocessors / max(tiles, 1.0))))
        w, part = max(1.0, tiles * parts / multiprocessors), depth / parts
        return w * (self.tile_s + self.tile_depth_s * part) + self.depth_s * part + self.start_s * (parts > 1)

    def scaled(self, times: float) -> ProductRates:
        """Of a type whose matrix rate is so many times as high: sums go by that.

        What a tile takes besides, reading and writing, does not: fitted to f8, bf16 and tf32 it differs by a quarter.
        """
        return replace(self, tile_depth_s=self.tile_depth_s / times, depth_s=self.depth_s / times)


@described
class AttentionRates:
    """Seconds of fused attention of 16-bit operands, `flop_s flops + score_s scores + row_s rows`.

    Scores are those that the mask leaves; rows are queries of all heads, whose share of a kernel's edges, of masked
    tiles and of statistics has the same cost whatever there is to multiply.
    """

    flop_s: float = told(Float(above=0), "the seconds of a floating-point operation of its products")
    score_s: float = told(_SECONDS, "the seconds of a score besides: its exponential and what it is scaled by")
    row_s: float = told(_SECONDS, "the seconds of a query of a head, however many keys it sees")

    def seconds(self, flops: float, scores: float, rows: float, speed: float = 1.0) -> float:
        """Seconds of one kernel; `speed` is how many times as fast as of 16 bits products of its type are."""
        return flops * self.flop_s / speed + scores * self.score_s + rows * self.row_s

    def slowed(self, times: float) -> AttentionRates:
        """Of a device that does everything only so many times as fast."""
        return AttentionRates(self.flop_s / times, self.score_s / times, self.row_s / times)


@described
class ElementRates:
    """Seconds of kernels that are no products, besides moving: the longer of moving and computing counts."""

    operation_s: float = told(_SECONDS, "the seconds of one operation on an element, all multiprocessors busy")
    row_exponential_s: float = told(
        _SECONDS, "the seconds of an exponential in a kernel that sums its rows, besides its bytes"
    )
    addition_s: float = told(_SECONDS, "the seconds of adding a float of 16 bits to memory that others add to")
    clash_s: float = told(_SECONDS, "the seconds that each further such addition to the same element waits")

    def seconds(self, work: Work, moved_s: float) -> float:
        """Seconds of a kernel whose bytes take `moved_s`."""
        exponentials_s = work.row_exponentials * self.row_exponential_s
        clashes_s = work.clashes * self.clash_s
        return max(
            moved_s + exponentials_s, work.operations * self.operation_s, work.additions * self.addition_s + clashes_s
        )


# Directions of attention that have rates of their own.
PASSES = ("forward", "backward")


@described
class HostRates:
    """What the host takes to start what a device does in a step, one thing after the other: `rhino.machine.host`."""

    array_s: float = told(_SECONDS, "the seconds of each array that a step is given")
    kernel_s: float = told(_SECONDS, "the seconds of a kernel that is started alone")
    apart_s: float = told(_SECONDS, "the seconds of a convolution or a collective, which no CUDA graph holds")
    graph_s: float = told(_SECONDS, "the seconds of a CUDA graph, whatever kernels are in it")


@described
class KernelRates:
    """What kernels take beyond the rates of a device: `products` by type, `attention`, `elements`; `launch_s` each.

    `host` is what starting them takes.
    """

    multiprocessors: int = told(Int(1), "the number of multiprocessors, which work on tiles side by side")
    launch_s: float = told(_SECONDS, "the seconds from the end of one kernel to the work of the next")
    products: Mapping[str, ProductRates] = told(
        MapOf(record(ProductRates), DTYPES), "the seconds of products by type", default_factory=dict, hash=False
    )
    attention: Mapping[str, AttentionRates] = told(
        MapOf(record(AttentionRates), PASSES),
        "the seconds of fused attention and of its gradients",
        when="attention",
        default_factory=dict,
        hash=False,
    )
    elements: ElementRates | None = told(
        record(ElementRates), "the seconds of kernels that are no products, beyond those of moving", default=None
    )
    host: HostRates | None = told(record(HostRates), "the seconds that the host takes to start a step", default=None)
