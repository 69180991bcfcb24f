"""Configuration of all tests: one shared cache, a working Ctrl-C, and deselection of tests that
cannot run.

GPU tests are deselected without a CUDA device; slow and long tests, unless `-m slow` or `-m long`
selects them. `--share K/N` selects every N-th slow test of each file (others for each K), and those
marked `always`. Tests are deselected instead of skipped, so that pytest's last line counts them.
"""

from __future__ import annotations

import compileall
import fcntl
import gc
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from shares import in_share
from warm_python import warm_python

if TYPE_CHECKING:
    from cuagent.worker import ForkServer

Once = Callable[[str, Callable[[Path], None]], Path]
Warm = Callable[..., list[str]]
COMMAND = ("cuagent.cli.main", "cuagent.judge", "cuagent.record", "pydantic", "torch._dynamo")
"""Modules, besides torch, that most commands of cuagent import."""


# How long an example takes depends on the machine.
SLOW = (HealthCheck.too_slow,)
settings.register_profile("tests", deadline=None, suppress_health_check=SLOW)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    explained = "every N-th slow test of each file, others for each K"
    parser.addoption("--share", default="0/1", metavar="K/N", help=explained)


def pytest_configure() -> None:
    """Restore Ctrl-C, which background processes of a shell ignore, and compile torch's modules to
    bytecode."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _compile_torch()


def _compile_torch() -> None:
    """Write the bytecode files of torch if pip did not. Fork servers write none, and many of them
    are started."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or not os.access(spec.origin, os.W_OK):
        return
    if not Path(importlib.util.cache_from_source(spec.origin)).exists():
        compileall.compile_dir(Path(spec.origin).parent, maxlevels=20, quiet=2, workers=0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without garbage collection, because that creates no garbage.

    Then exclude torch and the collected tests from it, which else examines their million objects
    again and again: a tenth of the time of all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _require_fixtures(item: pytest.Item) -> None:
    """Raise UsageError if a fixture of the test does not exist: a test that needs a GPU would show
    that only there."""
    info = item._fixtureinfo  # type: ignore[attr-defined]
    missing = {*info.names_closure} - {*info.name2fixturedefs, "request"}
    missing -= {name for mark in item.iter_markers("parametrize") for name in _names(mark)}
    if missing and "gpu" in item.keywords:
        raise pytest.UsageError(f"{item.nodeid}: no fixture {', '.join(sorted(missing))}")


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0]
    return [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = {mark for mark in ("slow", "long") if mark not in config.option.markexpr}
    if any("gpu" in item.keywords for item in items) and not _has_cuda():
        out.add("gpu")
        for item in items:
            _require_fixtures(item)
    selected = [item for item in items if not out & set(item.keywords)]
    selected = in_share(selected, config.option.share)
    if left := set(items) - set(selected):
        config.hook.pytest_deselected(items=list(left))
        items[:] = selected


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def one_cache(run_folder: Path) -> Iterator[None]:
    """Let all tests share one cache folder and one authentication key, as the runs of a user do.

    The cache is empty at first. The cache of the user who runs the tests is neither read nor
    filled.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(run_folder / "state"))
        yield


@pytest.fixture(scope="session")
def once(run_folder: Path) -> Once:
    """Return a function that makes a folder once for all processes of this test run; other callers
    wait until it is made."""

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
    """Return a function that starts a shared interpreter with imported modules, once, and returns
    the command to use it."""

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
    """Return a command to use in place of `sys.executable`: an interpreter that has already
    imported torch."""
    return warm()


@pytest.fixture(scope="session")
def command_python(warm: Warm) -> list[str]:
    """Return a command for an interpreter that has imported torch and most of cuagent's command
    line; its record timings are short."""
    return warm(*COMMAND, "short_records")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Yield one fork server, which has imported torch, for all tests whose referees do not harm
    it."""
    from cuagent.worker import ForkServer

    with ForkServer() as started:
        yield started


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
