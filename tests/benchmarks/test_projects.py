"""A user's script runs with the package of its module as it runs without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "projects.py"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["gru", "vision"])
def test_a_module_is_captured_judged_exported_installed_and_run(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), name, "--device", "cpu", "--pairs", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{name}: accepted"), done.stdout
    assert re.search(r"largest difference \S+ of the results' size; wall ", done.stdout)
    assert "the original module runs" not in done.stdout
