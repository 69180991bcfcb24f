"""A package of a captured module, in the script that it was captured from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scripts import TRAINING, printed_by

from cuagent.attempt import Attempt
from cuagent.capture.run import Order
from cuagent.cli.capture import captured
from cuagent.cli.script import captured_of
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task import load_task
from cuagent.verify.domain import Domain, TensorForm

pytestmark = pytest.mark.slow

KERNEL = """
import torch
import torch.nn.functional as F
from torch import nn

class ModelNew(nn.Module):
    ran = 0

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        ModelNew.ran += 1
        return torch.add(x, self.down(F.gelu(self.up(self.norm(x)))), alpha=0.75)
"""
LIST = '{"kind": "list", "items": [{"kind": "tensor"}]}'
INIT = '{"kind": "list", "items": [{"kind": "list", "items": []}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
PRINTS = """
    print("loss", loss.item(), model.blocks[1].up.weight.grad.norm().item())
"""
APPLIED = """    model = Net()
    import block_fast
    block_fast.optimize_(model, gradients=True)
"""
COUNTS = """
    import block_fast.model_new_verified.model_new as verified
    print("ran", verified.ModelNew.ran)
"""


def test_all_blocks_of_a_training_script_run_the_kernel(
    tmp_path: Path, command_python: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = TRAINING.replace("step = torch.compile(model)", "step = model").replace(
        "        optimizer.step()\n", "        optimizer.step()\n" + PRINTS
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(script)
    folder = tmp_path / "captured"
    manifest, checked = captured(Order(Path("train.py"), (), "Net.blocks.0"), folder)
    assert "error" not in checked
    task = load_task(folder / "task.py", device="cpu")
    domains = []
    for shape in manifest["shapes"]:
        form = shape["inputs"][0]
        domains.append(
            Domain(
                "cpu",
                ("x",),
                LIST,
                (TensorForm(form["dtype"], tuple(form["shape"]), tuple(form["stride"])),),
                INIT,
            )
        )
    facts = captured_of(task, tmp_path, "")
    assert facts is not None
    assert (facts.kind, facts.module) == ("Block", "Net.blocks.0")
    facts = replace(facts, shapes=tuple(domains[1:]))
    attempt = Attempt((("model_new.py", KERNEL),))
    files = guarded_files(attempt, task, domains[0], "reference.py", facts)
    write_files(files, tmp_path / "block_fast")
    (tmp_path / "block_fast" / "__init__.py").write_text("from .model_new import optimize_\n")
    changed = script.replace("    model = Net()\n", APPLIED).replace(PRINTS, PRINTS + COUNTS)
    (tmp_path / "changed.py").write_text(changed)
    before, after = (
        printed_by(command_python, tmp_path, name).split() for name in ("train.py", "changed.py")
    )
    assert after[-1] == "12"  # two blocks in six steps, in training mode
    numbers = [float(x) for x in before if x != "loss"]
    given = [float(after[n + k]) for n in range(0, len(after), 5) for k in (1, 2)]
    assert given == pytest.approx(numbers, rel=1e-4)
