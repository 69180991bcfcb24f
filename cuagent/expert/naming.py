"""Derive a kernel's name, its title and its captured operators from the step that it computes."""

from __future__ import annotations

import re
from collections.abc import Collection

from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.method import Computed

MOST_WORDS = 16
"""Largest number of operators in the title of a kernel."""


def origins_of(step: Computed) -> frozenset[str]:
    """Return the names of the captured operators that a step computes."""
    return frozenset(n.origin for n in step.nodes if n.origin)


def kernel_name(step: Computed, taken: Collection[str]) -> str:
    """Return a name for a step's kernel from at most four captured operators: `linear_gelu_kernel`.

    A number is appended to a name in `taken`.
    """
    origins = [n.origin for n in step.nodes if n.origin] or ["cast"]
    words = list(dict.fromkeys(re.sub(r"_\d+$", "", origin) for origin in origins))
    words += ["copy"] if isinstance(step, Convolution) and step.is_copy else []
    base = "_".join(words[:2] + words[-2:] if len(words) > 4 else words) + "_kernel"
    return numbered(base, taken)


def numbered(base: str, taken: Collection[str]) -> str:
    """Return the name `base`, with a number from 2 on behind it if it is in `taken`."""
    name, k = base, 2
    while name in taken:
        name, k = f"{base}{k}", k + 1
    return name


def title(step: Computed) -> str:
    """Return a title that says what a kernel computes, such as `linear -> gelu in one kernel.`"""
    words = list(dict.fromkeys(n.origin for n in step.nodes if n.origin)) or ["cast"]
    if isinstance(step, Convolution) and step.is_copy:
        return f"Input of {words[0]} in channels-last layout."
    if len(words) > MOST_WORDS:
        words = [*words[:4], f"{len(words) - 8} operators", *words[-4:]]
    return f"{' -> '.join(words)} in one kernel."
