"""Time calls that follow each other without a pause, as in a user's loop of small kernels.

CUDA events around single calls, before which the cache is overwritten, hide up to 60 us in which
the host prepares a call. In a loop that waits for the host these count. So calls in a row show the
cost of Python, of guards and of launches, which differs by some hundred us between torch's modes.

The outputs are not judged, and data stays in the caches. So these figures decide no verdict and no
speedup; they choose between rungs that are equally fast (`Ladder.chosen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.verify.batch import Batch

ROW_S = 0.02
"""Approximate duration in seconds of a row, after which the message to the process takes 1 %."""
CALLS = 10, 200
"""Smallest and largest number of calls in a row."""
LONGEST_ROW_S, LEAST_CALLS = 0.1, 2
"""Longest row in seconds, and the least number of calls of an arm whose smallest number of calls
would take longer. A message adds less than 1 % to so long a row."""
ROWS = 2
"""Number of rows of each arm, of which the quicker one counts."""
LONGEST_CALL_S = 0.01
"""Duration of the quickest arm's call in seconds, above which the GPU hides the host's work."""
LIMIT_S = 60.0


def time_in_a_row(timed_arms: Mapping[str, TimedArm], batch: Batch, slot: int) -> None:
    """Set `TimedArm.in_a_row_s` of all arms, from calls on the inputs of a slot.

    Does nothing if calls take so long that the GPU hides the host's work. Raises SessionEnded.
    """
    usual = {name: median(arm.claims) for name, arm in timed_arms.items() if arm.claims}
    if not usual or min(usual.values()) > LONGEST_CALL_S:
        return
    for _ in range(ROWS):
        for name, seconds in usual.items():
            arm = timed_arms[name]
            batch.lay_out(name, [slot])
            found = arm.session.row(batch.lent, slot, _calls(seconds), deadline_s=LIMIT_S)
            arm.in_a_row_s = min(found, arm.in_a_row_s or found)


def _calls(seconds: float) -> int:
    """Return the number of calls in a row of an arm whose call takes `seconds`."""
    (fewest, most), call_s = CALLS, max(seconds, 1e-7)
    calls = max(fewest, min(most, int(ROW_S / call_s)))
    return max(LEAST_CALLS, min(calls, int(LONGEST_ROW_S / call_s + 0.5)))
