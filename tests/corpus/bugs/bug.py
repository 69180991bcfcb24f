"""One seeded bug as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`find` must stand exactly once in the files of the honest candidate `of`."""

    of: str
    find: str
    put: str
    wrong: str
    equivalent: str = ""
    """Why it is no bug, on the shapes and values that the task declares or its reference takes."""
    topic: str = ""
    """The class of mistakes that it belongs to."""
