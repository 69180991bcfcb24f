"""A composed task before the filter."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_BATCH = 8
"""Batch size of a composed candidate; the filter solves for another one."""


@dataclass(frozen=True)
class Candidate:
    """A task before the filter."""

    index: int
    code: str
    ops: tuple[str, ...]
    families: tuple[str, ...]
    """Family of each seed that was applied."""
    dtype: str
    library: str = "torch"
    """Library of the operators; the paper keeps blocks of transformers apart."""

    @property
    def source(self) -> str:
        """Value of `data_source`, as in CUDA-Agent-Ops-6K."""
        return f"torch#{len(self.ops)}" if self.library == "torch" else self.library


def drawn(draw: random.Random, shares: Mapping[Any, float]) -> Any:
    """Draw a name with the given shares."""
    names: Sequence[Any] = list(shares)
    return draw.choices(names, [shares[name] for name in names])[0]
