"""Fixtures that run `cuagent` as a user does: in a separate process and folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import TASK, Cuagent, clean_environment


@pytest.fixture(scope="session")
def python(command_python: list[str]) -> list[str]:
    """Return the command of the interpreter for all commands of these tests."""
    return command_python


@pytest.fixture(scope="session")
def ladder_known(once: Callable[[str, Callable[[Path], None]], Path], python: list[str]) -> None:
    """Measure the ladder of `TASK` once, for tests of steps that follow the ladder."""

    def measure(folder: Path) -> None:
        (folder / "task.py").write_text(TASK)
        subprocess.run(
            [*python, "-m", "cuagent", "baseline", "task.py"],
            cwd=folder,
            env=clean_environment(folder / "home"),
            capture_output=True,
            timeout=600,
            check=True,
        )

    once("ladder", measure)


@pytest.fixture
def cuagent(tmp_path: Path, python: list[str]) -> Cuagent:
    """Return a function that runs `cuagent ARGS...` in `tmp_path`, in an interpreter that has
    imported torch and the command line."""
    return _started_by(python, tmp_path)


@pytest.fixture
def fresh_cuagent(tmp_path: Path) -> Cuagent:
    """Return a function that runs `cuagent ARGS...` in a new interpreter, as an installed command
    does."""
    return _started_by([sys.executable], tmp_path)


def _started_by(python: list[str], folder: Path) -> Cuagent:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, "-m", "cuagent", *arguments],
            cwd=folder,
            env=clean_environment(folder / "home") | env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run
