"""What is said of a kernel: the call as it stands in a program, and what the table knows of it.

Owns the data model. Knows no kernel, no mesh and no MLIR: `rhino.passes.kernels` reads calls and writes them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from rhino.errors import RhinoError
from rhino.program.data import KernelMemory, Rule
from rhino.program.element_types import dtype_bytes

# What a call does its arithmetic with: "tensor" are the matrix units, at the rate of products; "vector" the ordinary
# ones, which memory outruns. Others are looked up in the cluster's `efficiency.kernels`.
RATES = ("tensor", "vector", "attention", "attention-backward")


@dataclass(frozen=True, slots=True)
class KernelTensor:
    """Shape and MLIR element type of an operand or result."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.elements * dtype_bytes(self.dtype))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel.

    Attributes:
      target: the target of a custom call ("__cudnn$fmhaSoftmax"), or the operation's own name ("chlo.top_k").
      config: the call's configuration as plain data: its `mhlo.backend_config`, or the JSON in `backend_config`; of
        other operations their attributes, as far as they are plain.
    """

    target: str
    operands: tuple[KernelTensor, ...]
    results: tuple[KernelTensor, ...]
    config: Mapping[str, Any] = field(default_factory=dict)

    def config_of(self, *path: str) -> Any:
        """A value in the configuration, by the keys that lead to it.

        Raises:
          Refused: it is not there, so that this is not the call the entry knows.
        """
        at: Any = self.config
        for key in path:
            if not isinstance(at, Mapping) or key not in at:
                raise Refused(f"its configuration has no {'.'.join(path)}")
            at = at[key]
        return at

    @property
    def nbytes(self) -> int:
        """Bytes of all operands and results, each once."""
        return self.traffic(len(self.results))

    def traffic(self, results: int) -> int:
        """Bytes of all operands and of the first results, each once: behind them is memory to work in."""
        return sum(t.nbytes for t in (*self.operands, *self.results[:results]))


class Refused(RhinoError):
    """The table knows the target, and the message says why this call of it cannot be split.

    Args:
      flops, nbytes: arithmetic and memory traffic of the call as far as it says them itself; `nbytes` 0 for those of
        its operands and results.
    """

    def __init__(self, message: str, remedy: str = "", flops: int = 0, nbytes: int = 0) -> None:
        super().__init__(message, remedy)
        self.flops = flops
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True)
class Known:
    """What the table says of a call.

    Attributes:
      rule: how splitting one dimension splits the others. A factor of `rule.replicate` may not be split.
      names: of the factors, for messages.
      whole: why a factor may not be split, by its name.
      maxima: results that hold the largest value over everything: of parts, the largest of theirs.
      ordered: factors of which a device has to know where its part begins; micro-batches do not cut them.
      held: bytes that it takes besides operands and results, and the factors that divide them.
      flops: arithmetic of one execution.
      nbytes: memory traffic of one execution; by default that of reading operands and writing results once.
      dtype: the type whose rate the arithmetic has.
      rate: one of `RATES`.
    """

    rule: Rule
    names: tuple[str, ...]
    flops: int
    nbytes: int
    dtype: str
    rate: str = "tensor"
    whole: Mapping[str, str] = field(default_factory=dict)
    maxima: tuple[int, ...] = ()
    ordered: tuple[int, ...] = ()
    held: tuple[KernelMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel, or one family of kernels that are described alike.

    Attributes:
      name: "cudnn-attention".
      targets: what calls of it are named.
      doc: what it computes and what can be split, one or two sentences for the reference.
      describe: what is known of a call; raises `Refused`.
      resize: the configuration of the same call with other shapes, as the changes to it by path. By default none: the
        types of operands and results say it all.
      program: the name, in `rhino.ir.local_kernels.programs`, of the builder of what a device computes, where that is
        more than the same call with its own shapes.
    """

    name: str
    targets: tuple[str, ...]
    doc: str
    describe: Callable[[KernelCall], Known]
    resize: (
        Callable[[KernelCall, Sequence[KernelTensor], Sequence[KernelTensor]], Mapping[tuple[str, ...], Any]] | None
    ) = None
    program: str = ""
