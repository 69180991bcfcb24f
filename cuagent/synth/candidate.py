"""Define a candidate task: a composed task before the filter's checks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_BATCH = 8
"""Batch size in the source text of a composed candidate; the filter replaces it by a size that
gives a suitable time."""


@dataclass(frozen=True)
class Candidate:
    """A composed task that the filter has not checked yet."""

    index: int
    code: str
    ops: tuple[str, ...]
    families: tuple[str, ...]
    """Family of each operator template (`Seed`) that the candidate task applies."""
    dtype: str
    library: str = "torch"
    """Library that the operators are from, such as `transformers`; `loop` for a task with a
    loop."""

    @property
    def source(self) -> str:
        """Value of the column `data_source`, as in CUDA-Agent-Ops-6K."""
        return f"torch#{len(self.ops)}" if self.library == "torch" else self.library


def drawn(draw: random.Random, shares: Mapping[Any, float]) -> Any:
    """Return a random key of `shares`, with probabilities proportional to the values."""
    names: Sequence[Any] = list(shares)
    return draw.choices(names, [shares[name] for name in names])[0]
