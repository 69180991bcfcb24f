"""How long a worker may take to open."""

from __future__ import annotations

from cuagent.attempt import Attempt

OPEN_S = 60.0
OPEN_WITH_COMPILER_S = 300.0
"""A candidate that compiles while it is imported (load_inline) needs over a minute."""


def opening_s(attempt: Attempt | None) -> float:
    """Seconds that importing a model's code may take; None is a baseline, which may compile."""
    compiles = attempt is None or any(
        word in text for _, text in attempt.files for word in ("cpp_extension", "load_inline")
    )
    return OPEN_WITH_COMPILER_S if compiles else OPEN_S
