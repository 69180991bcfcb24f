"""Tests of compile caches that pass from an attempt's verification to its later processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task, load_task
from cuagent.verify import Referee
from cuagent.worker import compile_caches
from cuagent.worker.compile_caches import CompileCaches

ATTEMPT = Attempt((("model_new.py", "class ModelNew: pass\n"),))
OTHER = Attempt((("model_new.py", "class ModelNew: ...\n"),))
TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2) + 1
def get_inputs(): return [torch.randn(16, 24)]
def get_init_inputs(): return []
"""
COMPILING = """
import os, torch
from pathlib import Path

file = Path(os.environ["TRITON_CACHE_DIR"], "abc", "kernel.cubin")
print("compiled before" if file.exists() else "compiles now")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_text("machine code")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2) + FACTOR
"""


def filled(folder: Path) -> Path:
    """Make the folder of a process with a Triton kernel and a C++ kernel in its caches."""
    kernel, library = folder / "triton" / "abc" / "k.cubin", folder / "inductor" / "xy" / "c.so"
    for file in (kernel, library):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"code of " + file.name.encode())
    library.chmod(0o755)
    group = {"child_paths": {"k.cubin": str(kernel)}}
    (kernel.parent / "__grp__k.json").write_text(json.dumps(group))
    return folder


def test_next_process_of_the_attempt_gets_the_caches(tmp_path: Path) -> None:
    caches, target = CompileCaches(), tmp_path / "next"
    target.mkdir()
    caches.keep(ATTEMPT, filled(tmp_path / "first"))
    caches.lay(ATTEMPT, target)
    assert (target / "triton/abc/k.cubin").read_bytes() == b"code of k.cubin"
    assert os.access(target / "inductor/xy/c.so", os.X_OK)
    assert not os.access(target / "triton/abc/k.cubin", os.X_OK)
    group = json.loads((target / "triton/abc/__grp__k.json").read_text())
    assert group["child_paths"] == {"k.cubin": str(target / "triton/abc/k.cubin")}


def test_other_attempts_get_nothing(tmp_path: Path) -> None:
    caches, target = CompileCaches(), tmp_path / "next"
    target.mkdir()
    caches.keep(ATTEMPT, filled(tmp_path / "first"))
    caches.lay(OTHER, target)
    assert caches.has(ATTEMPT)
    assert not caches.has(OTHER)
    assert not list(target.iterdir())


def test_links_and_pipes_are_left_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    folder = filled(tmp_path / "first")
    (folder / "triton/abc/linked").symlink_to(secret)
    (folder / "triton/abc/twice").hardlink_to(secret)
    os.mkfifo(folder / "triton/abc/pipe")
    caches, target = CompileCaches(), tmp_path / "next"
    target.mkdir()
    caches.keep(ATTEMPT, folder)
    caches.lay(ATTEMPT, target)
    assert (target / "triton/abc/k.cubin").exists()
    found = {path.name for path in target.rglob("*")}
    assert not found & {"linked", "twice", "pipe"}


def test_linked_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("key")
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "triton").symlink_to(tmp_path / "elsewhere")
    caches = CompileCaches()
    caches.keep(ATTEMPT, folder)
    assert not caches.has(ATTEMPT)


@pytest.mark.parametrize(
    ("limit", "value"), [("MOST_BYTES", 20), ("MOST_ENTRIES", 3), ("DEEPEST", 1)]
)
def test_too_large_caches_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(compile_caches, limit, value)
    caches = CompileCaches()
    caches.keep(ATTEMPT, filled(tmp_path / "first"))
    assert not caches.has(ATTEMPT)


def test_oldest_attempts_are_forgotten(tmp_path: Path) -> None:
    folder, caches = filled(tmp_path / "first"), CompileCaches()
    attempts = [Attempt((("model_new.py", f"# {k}\n"),)) for k in range(6)]
    for attempt in attempts:
        caches.keep(attempt, folder)
    assert [caches.has(attempt) for attempt in attempts] == [False] * 2 + [True] * 4


@pytest.fixture
def referee(tmp_path: Path) -> Iterator[Referee]:
    (tmp_path / "task.py").write_text(TASK)
    with Referee(load_task(tmp_path / "task.py")) as referee:
        yield referee


def output_of_next_process(referee: Referee, attempt: Attempt, task: Task) -> str:
    built = build(attempt, task.device)
    referee.verify(attempt, built)
    with referee.processes.candidate(attempt, built) as session:
        return session.output()


def test_process_to_be_timed_finds_what_the_verified_one_compiled(referee: Referee) -> None:
    attempt = Attempt((("model_new.py", COMPILING.replace("FACTOR", "1")),))
    assert "compiled before" in output_of_next_process(referee, attempt, referee.task)


def test_refused_attempt_compiles_again(referee: Referee) -> None:
    attempt = Attempt((("model_new.py", COMPILING.replace("FACTOR", "2")),))
    assert "compiles now" in output_of_next_process(referee, attempt, referee.task)
