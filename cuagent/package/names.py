"""Make names safe for generated text."""

from __future__ import annotations

import re
from pathlib import Path


def quoted_name(path: Path) -> str:
    """Return a file's name for a docstring or comment: one line that cannot end either."""
    return re.sub(r"[^\w .+-]", "_", path.name)
