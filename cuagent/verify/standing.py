"""Keep accepted verdicts on large tensors, so that a record judgement need not repeat their draws.

A verdict at record effort has the same draws as any other, with new seeds, and further checks.
Where a call has many numbers, one verdict has examined more of them than several verdicts on a
small task, and takes 3 to 24 s on an H200. A timing at record effort judges further secret draws.

Invariant: the draws of a verdict count for at most one judgement at record effort.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.timing import Effort
from cuagent.verdict import FIRST_DRAWS, Verdict

LARGE_CALL_BYTES = 256 << 20
"""Least size in bytes of a call's tensors in a batch (`Referee.bytes_per_call`, two sets of inputs
and outputs) for which a verdict stands."""


class StandingVerdicts:
    """Accepted verdicts of quick effort whose draws were not used at record effort yet."""

    def __init__(self, bytes_per_call: int) -> None:
        self._stand = bytes_per_call >= LARGE_CALL_BYTES
        self._verdicts: dict[str, Verdict] = {}

    def keep(self, verdict: Verdict, effort: Effort | None) -> None:
        """Keep the final verdict of a judgement, if it is accepted and may stand."""
        if self._stand and verdict.accepted and effort is Effort.QUICK:
            self._verdicts[verdict.attempt] = verdict

    def take(self, attempt: str, effort: Effort | None) -> Verdict | None:
        """Return the verdict on the attempt of this digest, whose draws count at record effort;
        None if there is none."""
        found = self._verdicts.pop(attempt, None) if effort is Effort.RECORD else None
        return None if found is None else replace(found, notes=(*found.notes, FIRST_DRAWS))
