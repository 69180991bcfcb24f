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
    given = argparse.Namespace(jobs=1, gpus=1, seconds=9.0, json=None, dtype="float32")
    with pytest.raises(KeyboardInterrupt):
        survey._run_all([tmp_path / "level1" / "1_Task.py"], given, tmp_path)
    assert Interrupting.killed
