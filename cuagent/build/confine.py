"""What a compiler may see and take: the sources and its own folders; time and memory are capped.

Invariant: it writes one scratch folder only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cuagent.kernels import compiler
from cuagent.sandbox import Policy, probe, wrap

LARGEST_OUTPUT = 256 << 20
"""Bytes of any one file that a compiler may write."""
MOST_MEMORY = 12 << 30
"""Bytes of address space of a compiler's process."""

Confine = Callable[[list[str], Path, Path], list[str]]
"""Wraps a compiler's command: (argv, readable sources, writable scratch) -> confined argv."""


def sandboxed(argv: list[str], sources: Path, scratch: Path) -> list[str]:
    """The firmest tier of this machine around a compiler."""
    return wrap(argv, Policy(read=(sources, *compiler_folders()), write=(scratch,)), probe())


def runner(folder: Path, confine: Confine) -> compiler.Run:
    """Runs a compiler inside `confine`, which lets it read `folder`; time and size are capped."""

    def run(argv: list[str], scratch: Path) -> tuple[int, str]:
        confined = confine(argv, folder, scratch)
        # By a shell, which counts in blocks and KiB: preexec_fn is not safe beside threads.
        limits = f"ulimit -f {LARGEST_OUTPUT // 512}; ulimit -v {MOST_MEMORY // 1024}; ulimit -c 0"
        shell = ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh"]
        return compiler.run_compiler([*shell, *confined], scratch)

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
