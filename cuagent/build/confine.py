"""Run compilers in the sandbox with limits on time, memory and file size.

A compiler may read the attempt's sources and the folders of its toolkit.

Invariant: it can write to one scratch folder only.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from cuagent.attempt import MODULE, Attempt
from cuagent.kernels import compiler, dependencies
from cuagent.sandbox import Policy, probe, wrap

LARGEST_OUTPUT = 256 << 20
"""Largest size in bytes of each file that a compiler writes."""
MOST_MEMORY = 12 << 30
"""Largest address space in bytes of each compiler process."""
TOTAL_SECONDS = 600.0
"""Time limit in seconds for compiling all sources of one attempt together."""

Confine = Callable[[list[str], Path, Path], list[str]]
"""Function that wraps a compiler's command line to run in a sandbox: (command, readable folder of
the sources, writable scratch folder) -> wrapped command."""


def sandboxed(argv: list[str], sources: Path, scratch: Path) -> list[str]:
    """Wrap a compiler's command line to run in the strongest sandbox tier of this machine."""
    policy = Policy(
        read=(sources, *compiler_folders()),
        write=(scratch,),
        environment=tuple(compiler.FIXED.items()),
    )
    return wrap(argv, policy, probe())


def write_sources(attempt: Attempt, folder: Path) -> None:
    """Write only the sources and headers of `attempt` to `folder`, for the compiler to read.

    An empty model_new.py marks the parent of `kernels/`; the loader looks for it
    (`dependencies.tree_of`).
    """
    texts = {
        name: text for name, text in attempt.files if Path(name).suffix in dependencies.SUFFIXES
    }
    Attempt(tuple(sorted({**texts, MODULE: ""}.items()))).write(folder)


def runner(folder: Path, confine: Confine, seconds: float = TOTAL_SECONDS) -> compiler.Run:
    """Return a function that runs a compiler inside `confine`, where it can read `folder`.

    File size and memory are limited, and all runs must end within `seconds` from now; the function
    raises CompileFailed otherwise.
    """
    deadline = time.monotonic() + seconds
    too_long = (
        f"the sources of this attempt did not compile within {seconds:.0f} s in all; "
        "instantiate fewer templates or write fewer sources"
    )

    def run(argv: list[str], scratch: Path, source: Path) -> tuple[int, str]:
        confined = confine(argv, folder, scratch)
        # A shell sets the limits (in blocks and KiB), as preexec_fn is not safe with threads.
        limits = f"ulimit -f {LARGEST_OUTPUT // 512}; ulimit -v {MOST_MEMORY // 1024}; ulimit -c 0"
        shell = ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh"]
        remaining = deadline - time.monotonic()
        try:
            if remaining <= 0:
                raise compiler.CompileFailed(too_long, too_long)
            limit = min(remaining, compiler.TIME_LIMIT_S)
            return compiler.run_compiler([*shell, *confined], scratch, source, limit)
        except compiler.CompileFailed as error:
            if time.monotonic() < deadline:
                raise
            raise compiler.CompileFailed(too_long, too_long) from error

    return run


def compiler_folders() -> tuple[Path, ...]:
    """Return the folders outside the system's own that a confined compiler must be able to read."""
    folders = [Path(compiler.__file__).parent, Path(__file__).parent]
    for form in ("g++", "nvcc", "nvrtc"):
        try:
            command = compiler.toolchain(form).command
        except compiler.CompilerMissing:
            continue
        # A binary or a library is in a subfolder (bin, lib) of its toolkit.
        files = [Path(shutil.which(word) or word) for word in command]
        folders += [path.resolve().parent.parent for path in files if path.is_file()]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders += [Path(home).resolve() for home in homes if home and Path(home).is_dir()]
    return tuple(dict.fromkeys(folders))
