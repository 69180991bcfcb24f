"""Identify a package, and store for each machine if the package is faster than the original there.

Travels with an exported or applied kernel. `check.py --time` writes the result into the user's
cache; `optimize_` reads it. A result belongs to one package, one device and one version of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

SOURCES = (".py", ".json", ".cu", ".cpp", ".h", ".cuh")
"""Files whose content identifies a package."""


def machine(device: str) -> dict[str, str]:
    """Return the device's name and the version of torch."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {"device": name, "torch": torch.__version__}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", info.read_text(), re.M) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def record_path(folder: Path, here: dict[str, str]) -> Path:
    """Return the path of the timing result for the package in `folder` on the machine `here`."""
    name = hashlib.sha256(json.dumps(here, sort_keys=True).encode()).hexdigest()[:16]
    return _records(folder) / f"{name}.json"


def slower_here(folder: Path) -> str:
    """Return a message if the package was timed as slower than the original here; else ""."""
    try:
        if not _records(folder).is_dir():  # do not initialize CUDA if nothing was timed
            return ""
        device = json.loads((folder / "verified.json").read_text(encoding="utf-8"))["device"]
        here = machine(device)
        found: dict[str, Any] = json.loads(record_path(folder, here).read_text(encoding="utf-8"))
        speedup = float(found["speedup"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AssertionError):
        return ""
    if speedup >= 1:
        return ""
    return (
        f"it was timed on this machine at {speedup:.2f} times the original's speed "
        f"({here['device']}, torch {here['torch']}); time it again with check.py --time"
    )


def namespace(folder: Path) -> str:
    """Return the namespace in torch.ops for the package's operators, a digest of its files."""
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.suffix in SOURCES and p.is_file()):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return f"cuagent_{digest.hexdigest()[:16]}"


def _records(folder: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cuagent" / "packages" / namespace(folder)
