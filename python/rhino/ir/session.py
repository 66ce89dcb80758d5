"""What one run of passes is for and within: the cluster, the deadline, who is told how far it is.

Owns these as objects, so that no pass has to be told of them in text. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rhino.deadline import NEVER, Deadline

if TYPE_CHECKING:  # reading the registry for --help must load nothing of these
    from rhino.machine import Cluster
    from rhino.sharding.begun import BegunSearches
    from rhino.sharding.outcome import Progress


@dataclass(frozen=True, slots=True)
class Session:
    """What all passes of a run have in common.

    Attributes:
      cluster: what is planned for, where the option `topology` of a pass says nothing else.
      deadline: when searches take what they have.
      progress: called with (done, total, label) by the passes that search.
      begun: searches of one program that a pass began, for the same pass run again on the same step.
    """

    cluster: Cluster | None = None
    deadline: Deadline = NEVER
    progress: Progress | None = None
    begun: BegunSearches | None = None


ALONE = Session()
