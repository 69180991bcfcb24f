"""A user's script runs with the package of its module as it runs without it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from projects_runs import ratio, relative_errors, within

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "projects.py"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["gru", "vision"])
def test_a_module_is_captured_judged_exported_installed_and_run(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        name,
        "--device",
        "cpu",
        "--pairs",
        "1",
        "--seconds",
        "0",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--json", str(tmp_path / "figures.json")],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{name}: accepted"), done.stdout
    assert re.search(rf"{name}: same results; error of outputs \S+ -> .*; wall ", done.stdout)
    record = json.loads((tmp_path / "figures.json").read_text())["projects"][name]
    assert record["same"]
    assert record["warned"] == []
    assert record["wall_s"]["ratio"] > 0


def test_an_error_is_accepted_up_to_three_times_that_of_the_script() -> None:
    assert within(1e-3, 3e-3)
    assert not within(1e-3, 3.1e-3)
    assert within(1e-8, 9e-6), "scripts round their own reference"
    assert not within(1e-3, math.nan)


def test_errors_of_gradients_are_apart_and_nan_is_kept(tmp_path: Path) -> None:
    files = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save([{"outputs": [torch.ones(4)], "gradients": [2 * torch.ones(4)]}], files[0])
    torch.save([{"outputs": [torch.ones(4)], "gradients": [3 * torch.ones(4)]}], files[1])
    assert relative_errors(*files) == {"outputs": 0.0, "gradients": 0.5}
    torch.save([{"outputs": [torch.full((4,), math.nan)], "gradients": [torch.ones(4)]}], files[1])
    assert math.isnan(relative_errors(*files)["outputs"])


def test_interval_of_the_ratio_of_runs() -> None:
    found = ratio([(2.0, 1.0), (4.0, 2.0), (2.0, 1.0)])
    assert found["ratio"] == pytest.approx(2)
    assert found["interval"] == pytest.approx([2, 2])
    low, high = ratio([(2.0, 1.0), (1.0, 1.0)])["interval"]
    assert low < 1 < high
    assert ratio([(2.0, 1.0)])["interval"] is None
