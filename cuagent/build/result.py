"""Result of a build: libraries and short diagnostics, never raw compiler output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler, with the line of source code that it points to."""

    file: str
    line: int
    message: str
    source_line: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class KernelResources:
    """Resources of one CUDA kernel: registers, spilled and stack bytes per thread, shared bytes per
    block."""

    name: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Library:
    """A library compiled from one source of an attempt."""

    source: str
    """Path of the source relative to the attempt's folder."""
    path: Path
    key: str
    """Cache key: sha256 over sources, headers, compiler and flags."""
    cached: bool
    seconds: float
    resources: tuple[KernelResources, ...] = ()


@dataclass(frozen=True)
class Build:
    """Result of compiling all sources of one attempt; `ok` is True if each of them compiled."""

    attempt: str
    """Digest of the attempt."""
    libraries: tuple[Library, ...]
    diagnostics: tuple[Diagnostic, ...]
    ok: bool
    seconds: float
