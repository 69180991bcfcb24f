"""What the tests of the command line share: the environment, and what a command gives back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Cuagent = Callable[..., "subprocess.CompletedProcess[str]"]
FOREIGN = ("CUAGENT_", "OPENAI_", "ANTHROPIC_", "COLUMNS", "FORCE_COLOR", "NO_COLOR")


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of the developer's own settings or keys."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return kept | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
