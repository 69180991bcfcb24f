"""Figures for a captured script, which a run keeps."""

from __future__ import annotations

import json
from pathlib import Path

from cuagent.cli.script import captured_of
from cuagent.record.origin import with_mac
from cuagent.task import load_task

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x
def get_inputs(): return [torch.randn(3)]
"""


def test_results_without_a_valid_code_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    task = load_task(tmp_path / "task.py", device="cpu")
    facts = {"module": "net", "kind": "Block", "call": None, "autocast": None}
    kept = {"captured": facts, "digest": "d", "shapes": []}
    file = tmp_path / "script.json"
    for content, module in (
        (kept, None),
        (with_mac(kept), "net"),
        (with_mac(kept) | {"captured": facts | {"module": "other"}}, None),
    ):
        file.write_text(json.dumps(content))
        found = captured_of(task, tmp_path, "d")
        assert (found and found.module) == module
