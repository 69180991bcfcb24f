"""Make names safe for generated text."""

from __future__ import annotations

import re
from pathlib import Path


def quoted_name(path: Path) -> str:
    """Return a file's name with special characters replaced, safe in a docstring or comment."""
    return re.sub(r"[^\w .+-]", "_", path.name)
