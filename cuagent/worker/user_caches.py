"""The user's cache folder, shared by trusted processes only."""

from __future__ import annotations

import os
from pathlib import Path

INDUCTOR = "inductor"
"""Subfolder with torch.compile's cache."""


def user_caches() -> Path:
    """Return cuagent's cache folder of this user, which no candidate can read or write."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuagent"
