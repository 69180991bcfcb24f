"""Tests of the options of `benchmarks/corpus.py`; `tests/corpus` tests the verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[2] / "benchmarks" / "corpus.py"


def corpus(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CORPUS), *options],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        timeout=600,
    )


def test_candidates_for_a_gpu_are_not_judged_without_one() -> None:
    asked = corpus("--only-cuda")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "no CUDA device" in asked.stderr


def test_nothing_is_judged_after_the_time_limit(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    only = ("--only", "exploit/(by_address|last_answer)$")
    asked = corpus(*only, "--jobs", "2", "--seconds", "0", "--json", str(found))
    assert asked.returncode == 0, asked.stderr
    rows = json.loads(found.read_text())["rows"]
    assert [row["cuagent"]["word"] for row in rows] == ["not run", "not run"]
