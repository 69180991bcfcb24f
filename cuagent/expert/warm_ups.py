"""Write the calls that compile Triton kernels without launching them, from their launches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

ALLOCATED = re.compile(r"^(\w+) = torch\.empty\(.*dtype=torch\.(\w+)", re.MULTILINE)
LAUNCHED = re.compile(r"^(\w+)\[\(.*\)\]\(\n    (.*),\n((?:    .*\n)+)\)", re.MULTILINE)
"""Matches a launch; the groups are the kernel's name, its tensors and its other arguments."""
LEAST = 2
"""Least number of kernels that are worth compiling in parallel."""


def warm_ups(launch: Iterable[str], dtypes: Mapping[str, str]) -> list[str]:
    """Return a Python line for each Triton kernel that the lines `launch` launch.

    `dtypes` are those of the tensors in `launch`, by their names there. A launch that reads
    something else than tensors, such as a tensor descriptor, has no line; it compiles its kernel
    itself.
    """
    text = "\n".join(launch)
    known = {**dtypes, **dict(ALLOCATED.findall(text))}
    lines = []
    for name, tensors, others in LAUNCHED.findall(text):
        words = tensors.split(", ")
        if all(word in known for word in words):
            given = ", ".join(f"torch.{known[word]}" for word in words)
            rest = " ".join(line.strip() for line in others.splitlines()).rstrip(",")
            lines.append(f"{name}.warmup({given}, {rest}, grid=(1,))")
    return lines
