"""Evidence is judged again from the file alone; a file that lies does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Cuagent

TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
    def forward(self, x):
        return torch.relu(x * self.scale)
def get_inputs():
    return [torch.rand(8, 32)]
def get_init_inputs():
    return [32]
"""


@pytest.mark.slow
def test_a_verdict_holds_from_its_file_alone_and_a_file_that_lies_does_not(
    cuagent: Cuagent, tmp_path: Path
) -> None:
    task, candidate, file = (tmp_path / name for name in ("task.py", "new.py", "evidence.json"))
    task.write_text(TASK)
    candidate.write_text(TASK.replace("Model(", "ModelNew(").replace("torch.relu(", "torch.abs("))
    done = cuagent("verify", "task.py", "new.py", "--device", "cpu", "--evidence", str(file))
    assert done.returncode == 1, done.stderr
    task.unlink()
    done = cuagent("audit", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("holds: wrong values")
    data = json.loads(file.read_text())
    data["verdict"] |= {"accepted": True, "reason": "accepted", "detail": "really"}
    data["attempt"]["model_new.py"] += "# changed since\n"
    data["task"]["source"] += f"open({str(tmp_path / 'proof')!r}, 'w')\n"
    file.write_text(json.dumps(data))
    done = cuagent("audit", str(file))
    assert done.returncode == 2
    assert "unknown origin" in done.stderr
    assert not (tmp_path / "proof").exists(), "the code of a stranger is not run unasked"
    done = cuagent("audit", str(file), "--trust")
    assert done.returncode == 1
    assert "the attempt's text is not the one of the verdict" in done.stdout
    assert "recorded: accepted (really); now: wrong values" in done.stdout
    assert (tmp_path / "proof").exists()


def test_what_is_no_evidence_is_refused_in_one_line(cuagent: Cuagent, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    done = cuagent("audit", "other.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
