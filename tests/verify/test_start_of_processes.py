"""The fork server imports torch while the referee finds out how a candidate is confined."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.sandbox import Tier
from cuagent.task import load_task
from cuagent.verify import processes
from cuagent.verify.processes import Processes

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(4)]
"""


def test_the_fork_server_starts_first_and_ends_if_nothing_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    events: list[str] = []

    def started(**_: Any) -> Any:
        events.append("fork server")
        return SimpleNamespace(close=lambda: events.append("ended"))

    def isolate() -> Tier:
        events.append("tier")
        raise RuntimeError("no sandbox")

    monkeypatch.setattr(processes, "ForkServer", started)
    with pytest.raises(RuntimeError, match="no sandbox"):
        Processes(load_task(tmp_path / "model.py", device="cpu"), isolate)
    assert events == ["fork server", "tier", "ended"]
