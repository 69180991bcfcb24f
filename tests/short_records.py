"""Shorten record timings to the fewest repeats in every process that imports this module.

An interpreter of `warm_python` imports it for tests of whole commands. They test the use of a
timing, not its accuracy.
"""

from __future__ import annotations

from cuagent.measure.timing import timer
from cuagent.timing import Effort

RECORD_S = 3.0
"""Seconds for the repeats of a record timing."""

timer.BUDGET_S[Effort.RECORD] = RECORD_S
