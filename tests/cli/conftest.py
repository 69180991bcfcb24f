"""Run `cuagent` as a user does: in a separate process and folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import TASK, Cuagent, clean_environment


@pytest.fixture(scope="session")
def python(command_python: list[str]) -> list[str]:
    """The interpreter of all commands here."""
    return command_python


@pytest.fixture(scope="session")
def ladder_known(once: Callable[[str, Callable[[Path], None]], Path], python: list[str]) -> None:
    """The ladder of `TASK`, measured once before the tests that wait for what comes after it."""

    def measure(folder: Path) -> None:
        (folder / "task.py").write_text(TASK)
        subprocess.run(
            [*python, "-m", "cuagent", "baseline", "task.py"],
            cwd=folder,
            env=clean_environment(folder / "home"),
            capture_output=True,
            timeout=300,
            check=True,
        )

    once("ladder", measure)


@pytest.fixture
def cuagent(tmp_path: Path, python: list[str]) -> Cuagent:
    """Runs `cuagent ARGS...` in `tmp_path`; torch and the command line are imported before."""
    return _started_by(python, tmp_path)


@pytest.fixture
def fresh_cuagent(tmp_path: Path) -> Cuagent:
    """The same as it is installed: by an interpreter that imports all itself."""
    return _started_by([sys.executable], tmp_path)


def _started_by(python: list[str], folder: Path) -> Cuagent:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, "-m", "cuagent", *arguments],
            cwd=folder,
            env=clean_environment(folder / "home") | env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    return run
