"""`cuagent` as a person runs it: a process of its own in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import Cuagent, clean_environment


@pytest.fixture
def cuagent(tmp_path: Path) -> Cuagent:
    """Runs `cuagent ARGS...` in `tmp_path`."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cuagent", *arguments],
            cwd=tmp_path,
            env=clean_environment(tmp_path / "home") | env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    return run
