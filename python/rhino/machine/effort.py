"""How much is measured: the sizes of the experiments on devices, those of CPUs and those of GPUs.

Owns these numbers. How each experiment is timed is `rhino.machine.experiments`'. Needs no jax.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf

from rhino.machine.rates import DTYPES


@dataclass(frozen=True, slots=True)
class Experiments:
    """Sizes of the experiments: side of a matrix, bytes of a streamed array, bytes of collectives, seconds of each.

    `products` are (batch, rows, columns, depth) of the matrix products whose seconds go by shape, of `products_of`
    these types, in each of `ways`: "nt" says that the second operand lies transposed, as of a gradient by an input, and
    "tn" that the first one does, as by a weight.
    `between_bytes` are those of collectives between the hosts of a job.
    `alone` is the FLOP from which a product is timed alone: a program's start is little beside it.
    `fresh` is the size from which collectives are timed into memory that is touched for the first time, as a step's
    temporaries are where no pool keeps them.
    `lasting_s` is how long a step of large products runs to tell what power leaves of their rate; 0 for no experiment.
    `attention` are (positions, size of a head, causal) of fused attention, `convolutions` (images, side, channels).
    """

    matrix: int
    stream_bytes: int
    collective_bytes: tuple[int, ...]
    seconds: float
    fresh: float = inf
    alone: float = inf
    between_bytes: tuple[int, ...] = (4 << 10, 256 << 10, 1 << 20, 8 << 20)
    products: tuple[tuple[int, int, int, int], ...] = ()
    products_of: tuple[str, ...] = DTYPES
    ways: tuple[str, ...] = ("nn",)
    lasting_s: float = 0.0
    attention: tuple[tuple[int, int, bool], ...] = ()
    convolutions: tuple[tuple[int, int, int], ...] = ((8, 32, 8),)

    def repeat(self, nbytes: int) -> int:
        """How often a collective of so many bytes is repeated within one program, which keeps its memory."""
        return 1 if nbytes >= self.fresh else 8

    def repeat_product(self, flops: int) -> int:
        """The same of a product of so many FLOP."""
        return 1 if flops >= self.alone else 8


# Small collectives of threads give the latency. Their rate comes from one that no cache holds, as none holds a model.
CPU = Experiments(
    512, 32 << 20, (4 << 10, 64 << 10, 32 << 20), 0.3, fresh=1 << 20, alone=1 << 28,
    # The last are many small ones: an interaction of features, a head of attention.
    products=(*product((1, 8), (64, 512), (64, 512), (64, 512)), (512, 8, 8, 32), (64, 32, 32, 64)),
    products_of=("f32", "bf16"), ways=("nn", "nt", "tn"), convolutions=((8, 32, 64),),
)  # fmt: skip
_SIDES = (256, 1024, 4096)
GPU = Experiments(
    8192, 1 << 30, (64 << 10, 1 << 20, 16 << 20, 256 << 20), 0.1,
    between_bytes=(64 << 10, 1 << 20, 16 << 20, 256 << 20),
    products=tuple(sizes for sizes in product((1,), _SIDES, _SIDES, _SIDES) if sizes[1] <= sizes[2])
    + tuple((4, side, side, side) for side in _SIDES),
    # Others are as fast as these by their peaks.
    products_of=("tf32", "bf16", "f8"), lasting_s=6.0,
    attention=tuple(product((512, 2048, 8192), (64, 128), (False, True))),
    # Those of a ResNet with the picture's side, halved three times.
    convolutions=((64, 56, 64), (64, 28, 128), (64, 14, 256), (64, 7, 512)),
)  # fmt: skip
