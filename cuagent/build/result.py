"""Define the result of a build: libraries and short diagnostics, never raw compiler output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler, with the source line to which it points."""

    file: str
    line: int
    message: str
    source_line: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class KernelResources:
    """Resources of one CUDA kernel: registers, spill and stack per thread, shared per block."""

    name: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Library:
    """One source compiled to a loadable library."""

    source: str
    """Path relative to the attempt."""
    path: Path
    key: str
    """sha256 over sources, headers, compiler and flags."""
    cached: bool
    seconds: float
    resources: tuple[KernelResources, ...] = ()


@dataclass(frozen=True)
class Build:
    """Result for all sources of one attempt; `ok` is True if each of them compiled."""

    attempt: str
    """Digest of the attempt."""
    libraries: tuple[Library, ...]
    diagnostics: tuple[Diagnostic, ...]
    ok: bool
    seconds: float
