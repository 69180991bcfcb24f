"""Collect the seeded bugs: honest candidates with one piece of their text replaced, as data.

Each bug names its mistake. A change that is equivalent to the original states why; it must be
accepted. Each module holds one class of mistakes, or the bugs of one family of operators
(FAMILIES); `cuda` holds bugs of GPU kernels.
"""

from __future__ import annotations

from dataclasses import replace

from . import (
    convolutions,
    cuda,
    elementwise,
    fresh,
    indices,
    inputs,
    meanings,
    memory,
    missing,
    norms,
    parameters,
    places,
    products,
    recurrences,
    semantics,
    shortcuts,
    softmax,
    sums,
    tails,
    ties,
)
from .bug import Bug

__all__ = ["BUGS", "Bug"]

FAMILIES = (products, softmax, norms, convolutions, recurrences, indices, elementwise)
"""Modules with the bugs of one family of operators each."""
TOPICS: dict[str, tuple[Bug, ...]] = {
    "families of operators": tuple(bug for family in FAMILIES for bug in family.BUGS),
    "inputs that never vary": inputs.BUGS + places.BUGS,
    "moderate tails": tails.BUGS,
    "parameters as constructed": parameters.BUGS,
    "ties of rounding": ties.BUGS,
    "unwritten memory and races": memory.BUGS,
    "NaN on purpose": missing.BUGS,
    "long sums": sums.BUGS,
    "shortcuts and kept memory": shortcuts.BUGS,
    "meaning of operations": semantics.BUGS + meanings.BUGS,
    "kernels for the GPU": cuda.BUGS,
}

BUGS: tuple[Bug, ...] = tuple(
    bug if bug.topic else replace(bug, topic=topic)
    for topic, bugs in (*TOPICS.items(), ("", fresh.BUGS))
    for bug in bugs
)
