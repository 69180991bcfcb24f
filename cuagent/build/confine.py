"""What a compiler may see: the sources and its own folders; it writes one scratch folder only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cuagent.kernels import compiler
from cuagent.sandbox import Policy, probe, wrap

Confine = Callable[[list[str], Path, Path], list[str]]
"""Wraps a compiler's command: (argv, readable sources, writable scratch) -> confined argv."""


def sandboxed(argv: list[str], sources: Path, scratch: Path) -> list[str]:
    """The firmest tier of this machine around a compiler."""
    return wrap(argv, Policy(read=(sources, *compiler_folders()), write=(scratch,)), probe())


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
