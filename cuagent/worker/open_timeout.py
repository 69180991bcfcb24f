"""Time limits for opening a worker."""

from __future__ import annotations

from cuagent.attempt import Attempt

OPEN_S = 60.0
"""Seconds for one command that prepares a session, such as import, construction and loading."""
FIRST_CALL_S = 120.0
"""Seconds for a first call in which a candidate compiles, before its verdict: Triton and
torch.compile take up to a minute on a busy machine."""
OPEN_WITH_COMPILER_S = 300.0
"""Seconds for a candidate that compiles during its import; load_inline needs over a minute."""


def import_time_limit_s(attempt: Attempt | None) -> float:
    """Return the seconds that importing a model's code may take.

    `attempt` is None for a baseline, which may compile.
    """
    compiles = attempt is None or any(
        word in text for _, text in attempt.files for word in ("cpp_extension", "load_inline")
    )
    return OPEN_WITH_COMPILER_S if compiles else OPEN_S
