"""Lowering rules (see `graph/lowering.py`), one module for each family of operators, registered on
import."""

from cuagent.expert.rules import (  # noqa: F401
    assignments,
    attention,
    composed,
    contractions,
    elementwise,
    extremes,
    gathers,
    joins,
    loops,
    losses,
    normalisations,
    pixels,
    pooling,
    queries,
    rearranged,
    recurrences,
    reductions,
    scans,
    scatters,
    special,
    views,
    writes,
)
