"""Describe a candidate in few lines: what rewrites changed, and what each kernel computes.

A network of many layers repeats its operators, so many names are counted by their kind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

NAMED = 6
"""Largest number of operators or kernels that are named one by one."""
_NUMBER = re.compile(r"_\d+\b")
"""Number that the capture appends to the names of equal operators."""


def listed(names: Sequence[str]) -> str:
    """Return names as a list: `conv2d, batch_norm`; more than `NAMED` are counted by their kind:
    `20 conv2d, 20 batch_norm`.
    """
    if len(names) <= NAMED:
        return ", ".join(names)
    kinds = Counter(_NUMBER.sub("", name) for name in names)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def kernel_notes(titles: Mapping[str, str], uses: Mapping[str, int]) -> list[str]:
    """Return one line for each kernel, from its title and the number of its uses.

    Of more than `NAMED` kernels those that compute the same kinds of operators share a line.
    """
    alike: dict[str, list[str]] = {}
    for name, title in titles.items():
        key = title if len(titles) <= NAMED else _NUMBER.sub("", title)
        alike.setdefault(key, []).append(name)
    return [_note(key, names, titles, uses) for key, names in alike.items()]


def shortened(notes: Sequence[str], most: int) -> list[str]:
    """Return at most `most` lines; the last one says how many were left out."""
    if len(notes) <= most:
        return list(notes)
    return [*notes[: most - 1], f"and {len(notes) - most + 1} more, in the docstring of ModelNew"]


def _note(
    kinds: str, names: Sequence[str], titles: Mapping[str, str], uses: Mapping[str, int]
) -> str:
    """Return the line on kernels that compute the same kinds of operators."""
    used = sum(uses[name] for name in names)
    times = f", used {used} times" if used > len(names) else ""
    if len(names) == 1:
        return f"{names[0]}: {titles[names[0]]}{times}"
    return f"{names[0]} and {len(names) - 1} like it: {kinds}{times}"
