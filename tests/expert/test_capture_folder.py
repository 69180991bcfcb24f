"""Capture of a module leaves no files in the folder for temporary files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = """
import torch
from cuagent.expert.capture.export import capture
capture(torch.nn.Linear(2, 2), [torch.ones(1, 2)])
"""


@pytest.mark.slow
def test_capture_puts_inductor_cache_into_our_cache(tmp_path: Path, python: list[str]) -> None:
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    env |= {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    subprocess.run([*python, "-c", PROGRAM], env=env, check=True)
    assert not list(temporary.iterdir())
