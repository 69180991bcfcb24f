"""What a judge does at the same time: one attempt is checked while the next one is judged."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.judge import LocalJudge
from cuagent.task import load_task
from cuagent.verify import sanitize, tool_runs
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {slow}
        return torch.tanh(x) * 2 + 1
def get_inputs(): return [torch.randn(64, 32)]
def get_init_inputs(): return []
"""
CHECK_S = 3.0


def attempt(comment: str) -> Attempt:
    text = SOURCE.format(slow="pass").replace("class Model", "class ModelNew")
    return Attempt((("model_new.py", f"{text}# {comment}\n"),))


@pytest.mark.parametrize("shared", [True, False])
def test_best_attempt_is_sanitized_while_the_next_one_is_judged(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    task_file, marks = tmp_path / "task.py", tmp_path / "marks"
    # Eager is slow, so that the attempts surely do not lose.
    task_file.write_text(SOURCE.format(slow="import time; time.sleep(0.005)"))
    tool = tmp_path / "compute-sanitizer"
    loop = f"for i in $(seq {int(CHECK_S * 10)}); do date +%s.%N >> {marks}; sleep 0.1; done"
    tool.write_text(f"#!/bin/sh\n{loop}\necho '========= ERROR SUMMARY: 0 errors'\n")
    tool.chmod(0o755)
    found = tool, frozenset({"kernel"}), ("memcheck",)
    monkeypatch.setattr(sanitize, "applicable", lambda *_: found)
    monkeypatch.setattr(tool_runs, "sandboxed", lambda *_: [str(tool)])
    lock = DeviceLock(tmp_path / "gpu-0" if shared else None)
    timed: list[tuple[float, float]] = []
    with LocalJudge(
        load_task(task_file, device="cpu"), "none", fork_server=fork_server, device_lock=lock
    ) as judge:
        judge._ladder.found = SimpleNamespace(  # type: ignore[assignment]
            baselines=("eager",), proposed=("eager",), later=(), best=None
        )
        monkeypatch.setattr("cuagent.judge.gain_of", lambda *_: None)
        repeats = judge._timer._runner.__class__._repeats

        def repeated(self: Any, *given: Any) -> Any:
            begun = time.time()
            try:
                return repeats(self, *given)
            finally:
                timed.append((begun, time.time()))

        monkeypatch.setattr(type(judge._timer._runner), "_repeats", repeated)
        first = judge.judge(attempt("first"))
        returned = time.time()
        assert first.verdict.accepted, first.verdict.detail
        assert first.timing is not None
        second = judge.judge(attempt("second"), than=first.timing)
        assert second.timing is not None
        check = judge._checks.take(attempt("first"), first.build)
    seen = [float(mark) for mark in marks.read_text().split()]
    assert seen[-1] > returned, "the judgement waited for the check"
    assert min(begun for begun, _ in timed[1:]) > returned
    assert check is not None or second.verdict.accepted  # a better second attempt takes its place
    # Nothing is timed while the tool runs; the first marks of a slice may be of the last poll.
    assert not [mark for mark in seen for begun, end in timed[1:] if begun + 0.1 < mark < end]
