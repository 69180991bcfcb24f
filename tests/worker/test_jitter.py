"""The thread counts and the signals of single calls."""

from __future__ import annotations

import ctypes
import shutil
import threading
import time
from pathlib import Path

import pytest

from cuagent.worker.jitter import Jitter, _library_loads, _openmp_libraries


@pytest.fixture
def jitter() -> Jitter:
    """Its handler of signals stays, because a signal may arrive late and would end the process."""
    return Jitter()


def test_openmp_library_that_is_loaded_later_gets_the_number_of_threads(
    jitter: Jitter, tmp_path: Path
) -> None:
    import torch  # noqa: F401  (it loads an OpenMP library)

    known = jitter._openmp()
    assert known
    assert jitter._openmp() is known, "nothing was loaded in between"
    copy = tmp_path / "libgomp-copy.so"
    shutil.copy(Path(known[0]._name).resolve(), copy)
    later = ctypes.CDLL(str(copy))
    usual = later.omp_get_max_threads()
    assert len(jitter._openmp()) == len(known) + 1 == len(_openmp_libraries(jitter._libc))
    with jitter.interrupted():
        assert {library.omp_get_max_threads() for library in jitter._openmp()} == {3}
        assert later.omp_get_max_threads() == 3
    assert later.omp_get_max_threads() == usual


def test_openmp_libraries_are_found_if_the_sandbox_refuses_the_memory_map(
    jitter: Jitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine short of memory an honest candidate was refused for it."""
    import torch  # noqa: F401  (it loads an OpenMP library)

    def refused(*_: object, **__: object) -> str:
        raise PermissionError

    known = [library._name for library in _openmp_libraries(jitter._libc)]
    assert known
    monkeypatch.setattr(Path, "read_text", refused)
    assert [library._name for library in _openmp_libraries(jitter._libc)] == known
    monkeypatch.setattr(jitter, "_libc", object())  # a C library that cannot list them
    assert jitter._openmp() == []


def test_loads_are_counted(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    before = _library_loads(libc)
    assert before
    assert _library_loads(libc) == before


def test_a_thread_that_starts_during_a_call_is_interrupted(jitter: Jitter) -> None:
    """A sleep that a signal interrupts returns early."""
    libc = ctypes.CDLL(None)
    ends: list[int] = []
    with jitter.interrupted():
        thread = threading.Thread(target=lambda: ends.append(libc.usleep(2_000_000)))
        started = time.monotonic()
        thread.start()
        thread.join()
    assert ends == [-1], "usleep was not interrupted"
    assert time.monotonic() - started < 1.5
