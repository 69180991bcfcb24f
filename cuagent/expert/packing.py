"""Put several kernels into one source file if a candidate has many.

The start of a compiler for a file takes longer than one kernel: nvcc 13 takes 2.0 s of processor
time for a file of one depthwise kernel and 3.3 s for a file of eleven. A build also takes a limited
number of files. If a candidate has few kernels, each has a separate file: a later candidate then
compiles only the kernels that differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cuagent.expert.kernel import KernelCall

ALONE = 4
"""Largest number of kernels that all have files of their own."""
TOGETHER = 8
"""Number of kernels in a file that is compiled about as quickly as a file of one kernel."""
MOST_FILES = 16
"""Largest number of files with several kernels."""
TOP_LEVEL = (
    r"\s.*",
    r"",
    r"\}",
    r"//.*",
    r'#include [<"][\w.]+[>"]',
    r"#pragma (?:unroll|omp (?:parallel|for|simd)|GCC (?:unroll|ivdep)).*",
    r'(?:static __(?:global|device)__|extern "C" void) .*\b{name}\w*\(.*',
)
"""Patterns of the lines of a file that may share a file with others: all names that it defines
begin with the name of its kernel, `{name}`."""


def files_of(calls: Iterable[KernelCall]) -> dict[str, str]:
    """Return the path of the file of each kernel, by the path of the kernel's own file.

    Only kernels without own helper functions share a file.
    """
    own = {call.path: call for call in calls}
    files = {path: path for path in own}
    if len(own) <= ALONE:
        return files
    joined = [path for path, call in own.items() if _may_share(call)]
    alone = len(own) - len(joined)
    count = max(1, ALONE - alone, math.ceil(len(joined) / TOGETHER))
    count = min(count, MOST_FILES)
    for start, end in pairwise(len(joined) * k // count for k in range(count + 1)):
        files |= dict.fromkeys(joined[start:end], joined[start] if end > start else "")
    return files


def joined_text(texts: Sequence[str]) -> str:
    """Return the text of one file with the kernels of several, whose includes come first."""
    if len(texts) == 1:
        return texts[0]
    lines = [text.splitlines() for text in texts]
    includes = dict.fromkeys(line for text in lines for line in text if _is_include(line))
    bodies = ("\n".join(line for line in text if not _is_include(line)).strip() for text in lines)
    return "\n".join([*includes, "", "\n\n".join(bodies)]) + "\n"


def _is_include(line: str) -> bool:
    return line.startswith("#include")


def _may_share(call: KernelCall) -> bool:
    allowed = re.compile("|".join(TOP_LEVEL).replace("{name}", re.escape(call.name)))
    return all(map(allowed.fullmatch, call.text.splitlines()))
