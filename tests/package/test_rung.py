"""Exported rungs: a function that applies the best rung to the user's module, without cuagent."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch

from cuagent.measure.ladder import Ladder, Rung
from cuagent.package import ExportError, export_rung
from cuagent.package.rung import module_text
from cuagent.task.task import Device, Precision, Task
from cuagent.timing import Effort, Ratio

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, channels, 3)
    def forward(self, x):
        return self.conv(x).relu()
def get_inputs():
    return [torch.randn(2, 3, 8, 8)]
def get_init_inputs():
    return [4]
"""
TASK = Task(path=Path("block.py"), entry="Model", source=REFERENCE)


def rung(name: str, seconds: float, over: Ratio) -> Rung:
    return Rung(name, seconds, over, 1e-7, True, 1.0, None, True)


def ladder(name: str) -> Ladder:
    rungs = (
        rung("eager", 2e-3, Ratio(1.0, 1.0, 1.0)),
        rung(name, 1e-3, Ratio(2.0, 1.9, 2.1)),
    )
    versions = {"torch": "9.9"}
    return Ladder(
        TASK.digest, "match", "a named processor", versions, rungs, 1.0, effort=Effort.RECORD
    )


def exported(name: str, out: Path, task: Task = TASK) -> Path:
    found = ladder(name)
    assert found.best is not None
    return export_rung(found.best, found, task, out, measured=date(2026, 1, 2))


@pytest.mark.parametrize("name", ["eager+channels_last", "eager+bf16"])
def test_check_of_exported_rung_accepts_original_module(
    name: str, tmp_path: Path, python: list[str]
) -> None:
    folder = exported(name, tmp_path / "out")
    check = [*python, "-I", "check.py", "--tolerance", "0.05"]
    done = subprocess.run(check, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("agrees\n")


def test_exported_function_returns_the_given_module(tmp_path: Path) -> None:
    folder = exported("eager+channels_last", tmp_path / "out")
    names: dict[str, object] = {}
    exec((folder / "faster.py").read_text(), names)
    module = torch.nn.Conv2d(3, 4, 3)
    assert names["faster"](module) is module  # type: ignore[operator]
    assert module.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("compile", Precision.MATCH, ["module.compile()"]),
        ("reduce-overhead", Precision.MATCH, ['module.compile(mode="reduce-overhead")']),
        ("compile+channels_last", Precision.MATCH, ["channels_last", "module.compile()"]),
        ("eager", Precision.TF32, ["matmul.allow_tf32 = True", "whole process"]),
        ("eager+fp32", Precision.TF32, ["matmul.allow_tf32 = False"]),
        ("compile+bf16", Precision.BF16, ['torch.autocast("cuda", torch.bfloat16)']),
    ],
)
def test_module_text_applies_every_rung(
    name: str, precision: Precision, expected: list[str]
) -> None:
    text = module_text(name, replace(TASK, device=Device.CUDA, precision=precision))
    ast.parse(text)
    assert all(words in text for words in expected)
    assert ("allow_tf32" in text) == (precision is not Precision.MATCH)


def test_readme_contains_measured_ladder(tmp_path: Path) -> None:
    text = (exported("eager+channels_last", tmp_path / "out") / "README.md").read_text()
    assert "| eager+channels_last | 1.000 ms | 2.000x | 1.900 to 2.100 (faster) | 1.0e-07 |" in text
    assert "Measured on a named processor (torch 9.9); precision match." in text
    assert "without a kernel: eager PyTorch, channels_last. Measured with cuagent" in text
    assert "on 2026-01-02." in text


def test_exported_rung_installs_with_pip(tmp_path: Path, python: list[str]) -> None:
    folder = exported("eager+channels_last", tmp_path / "out")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    target = tmp_path / "site"
    done = subprocess.run(
        [*install, "--target", str(target), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    program = "import sys; sys.path.insert(0, sys.argv[1]); from block_fast import faster"
    subprocess.run([*python, "-I", "-c", program, str(target)], check=True)


def test_export_rung_refuses_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ExportError, match="not empty"):
        exported("eager+channels_last", tmp_path)
