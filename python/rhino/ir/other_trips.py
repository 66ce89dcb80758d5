"""What loops do in another trip than the one that it belongs to, so that collectives have computing beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from jaxlib.mlir import ir

from rhino.ir.early_gathers import gather_earlier
from rhino.ir.late_sums import sum_later
from rhino.ir.paired_trips import pair_trips

Earlier: TypeAlias = Literal["none", "first", "all"]


@dataclass(frozen=True, slots=True)
class OtherTrips:
    """What a program is changed by.

    Attributes:
      sums_later: gradients are summed over devices a trip later (`rhino.ir.late_sums`).
      gathers_earlier: which parameters are gathered a trip earlier (`rhino.ir.early_gathers`): what a trip needs first,
        or all. Loops that do so have two trips in one (`rhino.ir.paired_trips`).
    """

    sums_later: bool = False
    gathers_earlier: Earlier = "none"

    def __bool__(self) -> bool:
        return self.sums_later or self.gathers_earlier != "none"

    def change(self, module: ir.Module) -> OtherTrips:
        """Changes a module with shardings on its operations, in place; returns what of it there was to change."""
        later = self.sums_later and sum_later(module) > 0
        earlier = self.gathers_earlier
        if earlier != "none":
            if gather_earlier(module, earlier == "first"):
                pair_trips(module)
            else:
                earlier = "none"
        return OtherTrips(later, earlier)


IN_PLACE = OtherTrips()
