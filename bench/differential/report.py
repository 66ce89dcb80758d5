"""What a run of the differential test comes to: counts, and the failures by cause.

Owns the summary's text and JSON. Knows nothing of how programs are made or tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Right or refused in a located line; "skipped" is what one device cannot do either, "disputed" what the two references
# are not of one mind about.
GOOD = frozenset({"right", "refused", "skipped", "disputed"})


def cause(outcome: Mapping[str, Any]) -> tuple[str, str]:
    """What failures have in common that are one: their kind, and their text without names and numbers."""
    if outcome["kind"] in ("wrong", "disputed"):
        return outcome["kind"], ""
    text = re.sub(r"^\S+:\d+:\d+: ", "", outcome["detail"])
    return outcome["kind"], re.sub(r"%[\w.]+|\d+", "_", text)[:120]


@dataclass
class Tally:
    """Outcomes as they come."""

    kinds: Counter[str] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[str, Counter[str]] = field(default_factory=dict)
    ops: Counter[str] = field(default_factory=Counter)
    programs: int = 0
    split: int = 0

    def program(self, names: Iterable[str]) -> None:
        """Count a program, by the operations it has."""
        self.programs += 1
        self.ops.update(names)

    def outcome(self, place: str, found: Mapping[str, Any]) -> None:
        """Count what came of a program at a place."""
        self.kinds[found["kind"]] += 1
        self.places.setdefault(place, Counter())[found["kind"]] += 1
        self.split += found["split"] > 0
        if found["kind"] != "right":
            self.causes[cause(found)] += 1

    @property
    def bad(self) -> int:
        """Outcomes that must not be."""
        return sum(n for kind, n in self.kinds.items() if kind not in GOOD)

    def to_json(self) -> dict[str, Any]:
        """The summary."""
        return {
            "programs": self.programs,
            "outcomes": dict(sorted(self.kinds.items())),
            "split": self.split,
            "places": {place: dict(sorted(kinds.items())) for place, kinds in sorted(self.places.items())},
            "causes": [{"kind": k, "text": t, "count": n} for (k, t), n in self.causes.most_common()],
            "ops": dict(sorted(self.ops.items())),
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        lines = [f"{self.programs} programs of {len(self.ops)} operations: {kinds}; {self.split} not whole everywhere"]
        lines += [f"{n:6}  {kind}: {text}" for (kind, text), n in self.causes.most_common()]
        return "\n".join(lines)
