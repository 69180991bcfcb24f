"""Shorten timings of record effort to the fewest repeats, in every process that imports this
module.

An interpreter of `warm_python` imports it for tests of whole commands. Such tests check how a
timing is used, not how accurate it is.
"""

from __future__ import annotations

from cuagent.measure.timing import timer
from cuagent.timing import Effort

RECORD_S = 3.0
"""Time in seconds for the repeats of a timing of record effort."""

timer.BUDGET_S[Effort.RECORD] = RECORD_S
