"""The folder of the caches that trusted processes share."""

from __future__ import annotations

import os
from pathlib import Path

INDUCTOR = "inductor"
"""Name of the folder of torch.compile's cache."""


def user_caches() -> Path:
    """Return the folder with this user's caches, which no candidate can read or write."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuagent"
