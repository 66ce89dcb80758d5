"""Plans as an experienced engineer would write them by hand, for comparing: `rhino.experts.plan("megatron", ...)`.

Owns the public names; importing it imports neither jax nor MLIR.
"""

from __future__ import annotations

from rhino.experts.layouts import NotApplicable, Proposal
from rhino.experts.rules import EXPERTS, Expert
from rhino.experts.solve import ExpertOutcome, Trial, consult, consult_all, propose
from rhino.experts.specs import Specs
from rhino.lazy import lazily

# What needs MLIR is loaded on first use.
_LAZY = {"ExpertProgram": "rhino.experts.planning", "plan": "rhino.experts.planning"}
__all__ = [
    "EXPERTS",
    "Expert",
    "ExpertOutcome",
    "ExpertProgram",
    "NotApplicable",
    "Proposal",
    "Specs",
    "Trial",
    "consult",
    "consult_all",
    "names",
    "plan",
    "propose",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """The experts' names, in the order tables show them."""
    return tuple(expert.name for expert in EXPERTS)


__getattr__, __dir__ = lazily(__name__, _LAZY)
