"""HiGHS, silent. Owns that it prints nothing, and nothing else of how programs are solved."""

from __future__ import annotations

import highspy


class SilentHighs(highspy.Highs):  # type: ignore[misc]
    """Prints nothing. HiGHS 1.16 introduces itself on standard output when callbacks are enabled, as it is made."""

    def enableCallbacks(self) -> None:  # noqa: N802  (HiGHS's name)
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()
