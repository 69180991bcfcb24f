"""Time limits for starting a worker: import, construction and first call of its model."""

from __future__ import annotations

from cuagent.attempt import Attempt

OPEN_S = 60.0
"""Time limit in seconds for each command that prepares a session, such as import, construction and
loading of weights."""
FIRST_CALL_S = 120.0
"""Time limit in seconds for the first call of a candidate that compiles in that call. Triton and
torch.compile take up to a minute on a busy machine."""
OPEN_WITH_COMPILER_S = 300.0
"""Time limit in seconds for the import of a candidate that compiles in it; load_inline needs over a
minute."""


def import_time_limit_s(attempt: Attempt | None) -> float:
    """Return the time limit in seconds for the import of a model's code.

    `attempt` is None for a baseline, which may compile.
    """
    compiles = attempt is None or any(
        word in text for _, text in attempt.files for word in ("cpp_extension", "load_inline")
    )
    return OPEN_WITH_COMPILER_S if compiles else OPEN_S
