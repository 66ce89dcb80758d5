"""A way to compute values of the forward pass again, as a search looks at it and a plan tells it. Owns the records."""

from __future__ import annotations

from dataclasses import dataclass

from rhino.schema.kinds import Bool, Int, String
from rhino.schema.records import described, told

# From least to most recomputation.
LAYERS = "layers"
POLICIES = ("dots", LAYERS)


@described
class Recomputation:
    """The options of rhino-recompute, and what they come to."""

    policy: str = told(
        String(("keep", *POLICIES)),
        "what is kept of a segment of the forward pass besides what crosses into the next: all (keep), products "
        "(dots), nothing (layers)",
    )
    count: int = told(Int(0), "of how many segments, the first ones; a loop over layers is one or not at all")
    segments: int = told(Int(0), "segments that are computed again, loops apart")
    loops: int = told(Int(0), "loops over layers that are computed again, layer by layer")
    kept_bytes: int = told(Int(), "what the forward pass leaves for the backward pass, of the whole batch, undivided")
    flops: int = told(Int(0), "floating-point operations of products that a step does again, on all devices")
    undoes: bool = told(
        Bool(), "whether what the step itself computes again, as by jax.checkpoint, is kept first", default=False
    )
    fuses: bool = told(
        Bool(),
        "whether the step itself computes nothing again: its loops over layers only stack less first, of what the "
        "kernels that read it make again",
        default=False,
    )

    @property
    def name(self) -> str:
        """What is computed again, for people: "all but dots of 2 segments"."""
        if self.policy == "keep":
            if self.fuses:
                return "nothing but what is fused into its readers"
            return "nothing, not even what jax.checkpoint says" if self.undoes else "nothing"
        of = [
            f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((self.segments, "segment"), (self.loops, "loop")) if n
        ]
        name = f"{'all but dots' if self.policy == 'dots' else 'all'} of {' and '.join(of)}"
        return f"{name}, instead of what jax.checkpoint says" if self.undoes and not self.fuses else name


@dataclass(frozen=True, slots=True)
class Way:
    """A recomputation of a program, and by number the operations that it does again, and those that it does not need.

    The latter are reads and writes of what a loop stacks for the next; operations in regions are told, too.
    """

    told: Recomputation
    again: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()


KEEP = Way(Recomputation("keep", 0, 0, 0, 0, 0))
