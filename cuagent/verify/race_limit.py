"""Decide if racecheck on all rows is stopped, because it cannot end in time or takes too long.

A stopped run reports nothing, so it is stopped only if the run on few rows shows one of these:

- racecheck itself failed there, so it does not work for these kernels. A hardware exception does
  not show that: a kernel for one number of rows may access memory beyond fewer rows.
- Its call took so long that the call on all rows cannot end in time.
- It still runs long after the other tools, which saw all rows, have ended.
- It found nothing and ran all kernels, and the run on all rows takes some seconds more than such a
  call should take. The report on few rows counts then.

A finding on few rows never stops the run on all rows, because only the latter can reject.
Assumption: racecheck's time grows with the number of rows. It processes every access to shared
memory, so the assumption holds unless few rows leave most of the GPU idle; `CERTAIN` allows for
that.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuagent.verify.compute_sanitizer import Outcome, Report

FEW_LATE_S = 5.0
"""Seconds after the end of the other tools, after which racecheck on few rows must have ended."""
CLEAN_LATE_S = 3.0
"""Seconds that racecheck on all rows may take after a clean run on few rows and the end of the
other tools, besides `CERTAIN` times the call that the few rows predict. The value is a choice: no
such run was measured."""
LEAST_SCALE = 4.0
"""Smallest ratio of all rows to few rows at which late few rows count. Below it, all rows might end
soon after few rows."""
CERTAIN = 3.0
"""Number of times that the call on all rows, by the time of few rows, exceeds the time for it.

Several tools share the GPU while few rows are timed; a single one is up to that much faster.
"""


def why_hopeless(
    few: Report | None,
    others: Sequence[Report],
    *,
    scale: float,
    window_s: float,
    waited_s: float,
    clean_s: float = 0.0,
) -> str:
    """Return why racecheck on all rows is stopped; "" if it goes on.

    `few` is the report on few rows, None while that runs, for `waited_s` seconds since the `others`
    ended. All rows are `scale` times as many, and have `window_s` seconds in all. `clean_s` are the
    seconds since both the run on few rows and the others have ended.
    """
    if few is not None and few.failed_itself:
        return f"on few rows: {few.text.splitlines()[0]}"
    if not others or any(other.outcome is Outcome.UNKNOWN for other in others):
        return ""  # a tool that could not run says nothing about the call on all rows
    if few is None:
        late = waited_s > FEW_LATE_S and scale >= LEAST_SCALE
        return f"few rows took {FEW_LATE_S:.0f} s longer than the other tools" if late else ""
    if few.outcome is not Outcome.CLEAN or few.call_s is None or not covers(few, others):
        return ""
    all_s = few.call_s * scale
    if all_s > CERTAIN * window_s:
        return f"it would take some {all_s:.0f} s"
    if clean_s > CLEAN_LATE_S + CERTAIN * all_s:
        return f"it took {clean_s:.0f} s longer than the other tools and few rows, which are clean"
    return ""


def of_few(few: Report, whole: Report, others: Sequence[Report]) -> Report:
    """Return racecheck's report if it did not end on the whole inputs (`whole`).

    The report on few rows counts if the attempt ran all functions and kernels there that the
    `others`, the other tools, saw.
    """
    if few.outcome in (Outcome.FAULTY, Outcome.ELSEWHERE):
        text = f"{whole.text}; on few rows, which alone do not reject: {few.text}"
        return Report(few.tool, Outcome.UNKNOWN, text, few.reached, few.launched)
    return few if few.outcome is Outcome.CLEAN and covers(few, others) else whole


def covers(few: Report, others: Sequence[Report]) -> bool:
    """Return True if the call on few rows ran all functions and kernels that `others` saw."""
    ran = {*few.reached, *few.launched}
    return bool(ran) and all({*other.reached, *other.launched} <= ran for other in others)
