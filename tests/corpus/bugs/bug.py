"""Define a seeded bug as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A bug: replace `find` by `put` in the honest candidate `of`, where it occurs exactly once."""

    of: str
    find: str
    put: str
    wrong: str
    """Description of the mistake."""
    equivalent: str = ""
    """Reason why it is not a bug for the task's shapes and valid values; empty for a real bug."""
    open: str = ""
    """Reason why the verifier still accepts it at times; empty if it does not."""
    topic: str = ""
    """Class of mistakes; empty for the class of its module."""
