"""The survey's arms and its processes."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import survey


def test_every_arm_is_also_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides are compared with the same means."""
    graph = SimpleNamespace(replay=lambda: None)
    stubs: dict[str, Any] = {
        "CUDAGraph": lambda: graph,
        "Stream": object,
        "stream": nullcontext,
        "synchronize": lambda: None,
        "graph": lambda *_, **__: nullcontext(),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(survey.torch.cuda, name, stub)
    names = ["eager", "eager+last", "compile", "own"]
    arms: dict[str, Any] = {name: {"error": 0.0} for name in names}
    captured = dict(survey._graphs({name: lambda: 7 for name in names}, arms))
    assert list(captured) == [f"{name} in a graph" for name in names]
    assert captured["eager in a graph"]() == 7


class Interrupting:
    """Process that interrupts the survey when it is polled."""

    killed = False

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def poll(self) -> None:
        raise KeyboardInterrupt

    def kill(self) -> None:
        type(self).killed = True


def test_an_interrupt_ends_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey.subprocess, "Popen", Interrupting)
    given = argparse.Namespace(
        jobs=1, gpus=1, seconds=9.0, json=None, dtype="float32", replay=False
    )
    with pytest.raises(KeyboardInterrupt):
        survey._run_all([tmp_path / "level1" / "1_Task.py"], given, tmp_path)
    assert Interrupting.killed


def test_problems_of_levels_and_of_a_folder_without_levels(tmp_path: Path) -> None:
    for name in ("levels/level1/10_B.py", "levels/level1/9_A.py", "levels/level2/1_C.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = survey._problems(tmp_path / "levels", ["2", "1"])
    assert [survey._name(path) for path in found] == ["2/1", "1/9", "1/10"]
    (tmp_path / "flat").mkdir()
    for name in ("rope.py", "2_layers.py", "notes.md"):
        (tmp_path / "flat" / name).touch()
    found = survey._problems(tmp_path / "flat", ["1", "2"])
    assert [survey._name(path) for path in found] == ["2_layers", "rope"]
