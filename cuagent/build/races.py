"""Compile the C++ sources of an attempt so that the libraries detect data races between threads.

`races.h` is the runtime: g++ with -fsanitize=thread calls it before each access to memory. Not
covered: clang, which links its own runtime; races between a read and a write.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.kernels.compiler import Toolchain

RUNTIME = Path(__file__).with_name("races.h")
FLAGS = ("-fsanitize=thread", "-nodefaultlibs", "-include", str(RUNTIME))
"""Options of g++ for libraries that detect races. Without its default libraries g++ does not link
ThreadSanitizer's own runtime, which a process can only load at its start."""
LIBRARIES = ("-lstdc++", "-lm", "-lgomp", "-lgcc_s", "-lgcc", "-lc")
_THREADS = re.compile(r"#\s*pragma\s+omp|_Pragma|\bomp_|\bthread\b|\bpthread_|\basync\b|execution")


def may_use_threads(attempt: Attempt) -> bool:
    """Return True if the text of a C++ or CUDA source or header contains a word that starts
    threads."""
    return any(_THREADS.search(text) for name, text in attempt.files if not name.endswith(".py"))


def can_watch(tools: Toolchain) -> bool:
    """Return True if this compiler can build libraries that detect data races (g++, not clang)."""
    return tools.form == "g++" and "clang" not in tools.version


def watched(tools: Toolchain) -> Toolchain:
    """Return a toolchain that builds libraries that detect data races; it has its own cache
    folder."""
    return replace(
        tools,
        command=(*tools.command, *FLAGS),
        libraries=(*tools.libraries, *LIBRARIES),
        name=f"{tools.name}-races",
    )
