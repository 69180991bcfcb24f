"""What a compiler may see and take: the sources and its own folders; time and memory are capped.

Invariant: it writes one scratch folder only.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from cuagent.attempt import MODULE, Attempt
from cuagent.kernels import compiler
from cuagent.kernels.dependencies import SUFFIXES
from cuagent.sandbox import Policy, probe, wrap

LARGEST_OUTPUT = 256 << 20
"""Bytes of any one file that a compiler may write."""
MOST_MEMORY = 12 << 30
"""Bytes of address space of a compiler's process."""
TOTAL_SECONDS = 600.0
"""For all sources of one attempt together."""

Confine = Callable[[list[str], Path, Path], list[str]]
"""Wraps a compiler's command: (argv, readable sources, writable scratch) -> confined argv."""


def sandboxed(argv: list[str], sources: Path, scratch: Path) -> list[str]:
    """The firmest tier of this machine around a compiler."""
    policy = Policy(
        read=(sources, *compiler_folders()),
        write=(scratch,),
        environment=tuple(compiler.FIXED.items()),
    )
    return wrap(argv, policy, probe())


def lay_down(attempt: Attempt, folder: Path) -> None:
    """Write the sources and headers of `attempt`, and nothing else that a compiler could read.

    A model_new.py without text marks `kernels/`, as the loader looks for it (`tree_of`).
    """
    texts = {name: text for name, text in attempt.files if Path(name).suffix in SUFFIXES}
    Attempt(tuple(sorted({**texts, MODULE: ""}.items()))).write(folder)


def runner(folder: Path, confine: Confine, seconds: float = TOTAL_SECONDS) -> compiler.Run:
    """Return a function that runs a compiler inside `confine`, which lets it read `folder`.

    Size and time are capped: all runs must end within `seconds` from now.
    """
    ends = time.monotonic() + seconds
    too_long = (
        f"the sources of this attempt did not compile within {seconds:.0f} s in all; "
        "instantiate fewer templates or write fewer sources"
    )

    def run(argv: list[str], scratch: Path, source: Path) -> tuple[int, str]:
        confined = confine(argv, folder, scratch)
        # By a shell, which counts in blocks and KiB: preexec_fn is not safe beside threads.
        limits = f"ulimit -f {LARGEST_OUTPUT // 512}; ulimit -v {MOST_MEMORY // 1024}; ulimit -c 0"
        shell = ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh"]
        left = ends - time.monotonic()
        try:
            if left <= 0:
                raise compiler.CompileFailed(too_long, too_long)
            limit = min(left, compiler.TIME_LIMIT_S)
            return compiler.run_compiler([*shell, *confined], scratch, source, limit)
        except compiler.CompileFailed as error:
            if time.monotonic() < ends:
                raise
            raise compiler.CompileFailed(too_long, too_long) from error

    return run


def compiler_folders() -> tuple[Path, ...]:
    """What a confined compiler must be able to read beside the system's own folders."""
    folders = [Path(compiler.__file__).parent]
    for form in ("g++", "nvcc", "nvrtc"):
        try:
            command = compiler.toolchain(form).command
        except compiler.CompilerMissing:
            continue
        # A library or a binary lies one folder below the root of its toolkit.
        named = [Path(shutil.which(word) or word) for word in command]
        folders += [path.resolve().parent.parent for path in named if path.is_file()]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders += [Path(home).resolve() for home in homes if home and Path(home).is_dir()]
    return tuple(dict.fromkeys(folders))
