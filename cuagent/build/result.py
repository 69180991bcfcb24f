"""What a build gives back: libraries, or short diagnostics, never a wall of compiler output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler, with the source line it points at."""

    file: str
    line: int
    message: str
    source_line: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class KernelResources:
    """The compiler's resource report for one CUDA kernel; bytes are per thread or per block."""

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
    """sha256 over source, headers, compiler, flags."""
    cached: bool
    seconds: float
    resources: tuple[KernelResources, ...] = ()


@dataclass(frozen=True)
class Build:
    """All sources of one attempt. `ok` means that every one of them compiled."""

    attempt: str
    """Digest of the attempt."""
    libraries: tuple[Library, ...]
    diagnostics: tuple[Diagnostic, ...]
    ok: bool
    seconds: float
