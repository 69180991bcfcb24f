"""The results of a judgement that a package's README reports."""

from __future__ import annotations

from typing import Protocol

from cuagent.score import Score
from cuagent.timing import Timing
from cuagent.verdict import Verdict
from cuagent.verify.domain import Domain


class Figures(Protocol):
    """Results of a judgement; for a None the README says "not verified" or "not measured"."""

    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def timing(self) -> Timing | None: ...
    @property
    def score(self) -> Score | None: ...
    @property
    def domain(self) -> Domain | None: ...
    @property
    def contract(self) -> str: ...
