"""`cuagent` as a person runs it: a process of its own in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import TASK, Cuagent, clean_environment


@pytest.fixture(scope="session", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a command has measured or compiled serves those of the other tests, as it does a user.

    Else each run would time the ladder of the same small task again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def ladder_known(one_cache: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The ladder of `TASK`, measured before the tests that wait for what comes after it."""
    folder = tmp_path_factory.mktemp("ladder")
    (folder / "task.py").write_text(TASK)
    subprocess.run(
        [sys.executable, "-m", "cuagent", "baseline", "task.py"],
        cwd=folder,
        env=clean_environment(folder / "home"),
        capture_output=True,
        timeout=300,
        check=True,
    )


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
