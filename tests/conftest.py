"""Shared by all tests: one cache, Ctrl-C that works, and GPU tests deselected where there is none.

Slow and long tests are deselected, too, unless `-m slow` or `-m long` asks for them.

Deselected, never silently skipped: the closing line of pytest counts them.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from warm_python import warm_python

if TYPE_CHECKING:
    from cuagent.worker import ForkServer

Once = Callable[[str, Callable[[Path], None]], Path]
Warm = Callable[..., list[str]]
COMMAND = ("cuagent.cli.main", "cuagent.judge", "cuagent.record", "pydantic", "torch._dynamo")
"""Modules that most commands import, besides torch."""


def pytest_configure() -> None:
    """Restore Ctrl-C: processes that a shell starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = {mark for mark in ("slow", "long") if mark not in config.option.markexpr}
    if any("gpu" in item.keywords for item in items) and not _has_cuda():
        out.add("gpu")
    left = [item for item in items if out & set(item.keywords)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not out & set(item.keywords)]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of this run of the tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def one_cache(run_folder: Path) -> Iterator[None]:
    """Share one cache and one key of origin among all tests, as the runs of a user do.

    The cache is empty at first; that of the user who runs the tests is neither read nor filled.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(run_folder / "state"))
        yield


@pytest.fixture(scope="session")
def once(run_folder: Path) -> Once:
    """Return a function that makes a folder once for all processes of this run; others wait."""

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, there = run_folder / name, run_folder / f"{name}.made"
        with (run_folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not there.exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                there.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def warm(once: Once) -> Warm:
    """Return a function that gives the command of a shared interpreter with imported modules."""

    def shared(*more: str) -> list[str]:
        whole_run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()

        def start(folder: Path) -> None:
            (folder / "command").write_text(json.dumps(warm_python(whole_run, *more)))

        command: list[str] = json.loads(
            (once("-".join(("python", *more)), start) / "command").read_text()
        )
        return command

    return shared


@pytest.fixture(scope="session")
def python(warm: Warm) -> list[str]:
    """Stands for `sys.executable` in a command: an interpreter that has imported torch."""
    return warm()


@pytest.fixture(scope="session")
def command_python(warm: Warm) -> list[str]:
    """An interpreter that has imported torch and most of a command; record timings are short."""
    return warm(*COMMAND, "short_records")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """A warm process for all referees whose tests do it no harm: torch is imported once."""
    from cuagent.worker import ForkServer

    with ForkServer() as started:
        yield started


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
