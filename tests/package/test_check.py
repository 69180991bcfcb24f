"""The check of a package of a captured module, which holds no weights and no recorded inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cuagent.package import check

ORIGINAL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))
    def forward(self, x):
        return x + x @ self.weight
def get_inputs():
    return [torch.randn(4, 8)]
"""
PACKAGE = """
import reference
class ModelNew(reference.Model):
    def forward(self, x):
        return x + FACTOR * (x @ self.weight)
"""


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, factor: str, original: str = ORIGINAL
) -> int:
    folder.mkdir(exist_ok=True)
    (folder / "reference.py").write_text(original)
    (folder / "__init__.py").write_text(PACKAGE.replace("FACTOR", factor))
    (folder / "task.json").write_text(
        json.dumps({"name": "checked_fast", "entry": "Model", "device": "cpu"})
    )
    monkeypatch.setattr(check, "HERE", folder)
    monkeypatch.setattr(sys, "argv", ["check.py", str(folder / "reference.py")])
    monkeypatch.syspath_prepend(str(folder))
    for name in ("reference", "original", "checked_fast"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return check.main()


def test_weights_that_are_zeros_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "right", monkeypatch, "1.0") == 0
    assert "agrees" in capsys.readouterr().out
    assert run(tmp_path / "wrong", monkeypatch, "1.5") == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_recorded_inputs_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ORIGINAL.replace("[torch.randn(4, 8)]", "[(lambda kept: kept['0.ids'])(None)]")
    assert run(tmp_path, monkeypatch, "1.0", text) == 2
    assert capsys.readouterr().out == (
        "checked_fast: its inputs were recorded and are no part of the package; name the captured "
        "task, such as captured/NAME/task.py\n"
    )


def test_weights_of_a_constructor_stay() -> None:
    layer = nn.Linear(3, 3)
    before = layer.weight.clone()
    check._fill(layer)
    assert torch.equal(layer.weight, before)


def test_bfloat16_has_its_own_tolerance() -> None:
    one = torch.ones(2)
    assert check._error(one, one + 0.04, None) > 1
    assert check._error(one.bfloat16(), (one + 0.04).bfloat16(), None) < 1
    assert check._error(one.bfloat16(), (one + 0.04).bfloat16(), 0.01) > 1
