"""A result on all recorded shapes of a script's module, and in the script itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import BUSY, DECODER, TRAINING, Run
from shares import slow_after

from cuagent.arms import EAGER
from cuagent.attempt import freeze
from cuagent.capture.run import Order
from cuagent.capture.shapes import (
    ShapeResult,
    ShapesResult,
    _result,
    judge_shapes,
    lines,
    manifest_of,
)
from cuagent.capture.swap import ScriptTiming, SwapRefused, time_swapped
from cuagent.cli.capture import captured
from cuagent.cli.exits import Refused
from cuagent.cli.script import require_trusted_script, script_results
from cuagent.judge import LocalJudge
from cuagent.package import Captured
from cuagent.task import load_task
from cuagent.task.step import training_step
from cuagent.timing import Effort

ONLY_LARGE = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(512))

    def forward(self, x):
        y = torch.sigmoid(x + self.bias) * torch.tanh(x) + torch.sin(2 * x) / 2
        return torch.softmax(y, -1) if x.shape[0] == 1024 else y
"""


def test_the_weighted_mean_counts_calls_times_seconds_and_the_original_where_it_stays() -> None:
    found = ShapesResult(
        (
            ShapeResult("task.py", 10, True, "", 2.0, 1.9, 2.1, eager_s=0.4),
            ShapeResult("shape_2.py", 5, False, "rejected: wrong_values", eager_s=0.2),
            ShapeResult(None, 5, False, "other arguments"),
        ),
        share=0.5,
    )
    single = lines(ShapesResult((ShapeResult("task.py", 1, True, "", 2.0, eager_s=0.4),), 0.5))
    assert single[0].startswith("     1 call   task.py: ")
    other = (10 * 0.4 + 5 * 0.2) / 15
    before = 10 * 0.4 + 5 * 0.2 + 5 * other
    assert found.weighted == pytest.approx(before / (before - 10 * 0.2))
    assert found.worst.speedup == 1.0
    assert found.script == pytest.approx(1 / (0.5 + 0.5 / found.weighted))
    text = lines(found)
    assert text[1] == "     5 calls  shape_2.py: original module (rejected: wrong_values)"
    assert "worst shape: 1.00x (shape_2.py)" in text[3]
    assert "took 50% of the script's steps, so they should become" in text[4]


def test_all_modules_of_the_class_count_in_the_gain_of_a_package() -> None:
    shape = ShapeResult("task.py", 10, True, "", 2.0, 1.9, 2.1, eager_s=0.4)
    one, every = ShapesResult((shape,), 0.1), ShapesResult((shape,), 0.1, share_of_class=0.8)
    assert "optimize_" not in lines(one)[-1]
    assert one.to_json()["script_of_class"] is None
    assert "changes together, took about 80%: 1.67x" in lines(every)[-1]


def test_no_gain_of_the_script_is_claimed_if_no_shape_is_surely_faster() -> None:
    doubtful = ShapeResult("task.py", 10, True, "", 1.2, 0.9, 1.6, eager_s=0.4)
    text = lines(ShapesResult((doubtful,), share=0.5))
    assert text[0].endswith("task.py: 1.20x [0.90, 1.60] over eager (inconclusive)")
    assert text[-1].endswith("; no shape is surely faster, so no gain is shown")
    sure = ShapeResult("shape_2.py", 1, True, "", 1.2, 1.1, 1.3, eager_s=0.4)
    assert "so they should become" in lines(ShapesResult((doubtful, sure), share=0.5))[-1]


def test_the_reason_for_an_unused_shape_has_the_detail_of_the_verdict() -> None:
    verdict = SimpleNamespace(accepted=False, reason="raised an exception", detail="a.py:3:\n x")
    judgement: Any = SimpleNamespace(verdict=verdict, timing=None)
    assert _result("shape_2.py", 3, judgement).why == "rejected: raised an exception, a.py:3: x"


def test_no_gain_of_the_script_follows_from_the_share_of_a_forward() -> None:
    trained = ShapesResult((ShapeResult("task.py", 10, True, "", 2.0, eager_s=0.4),), 0.1, True)
    assert "forward took 10% of the script's steps, and its backward was" in lines(trained)[-1]
    assert trained.to_json()["script"] is None


def test_a_task_without_a_manifest_has_no_shapes(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class Model: pass\ndef get_inputs(): return []\n")
    assert manifest_of(load_task(tmp_path / "task.py", device="cpu")) is None


MANIFEST_TEXT: dict[str, Any] = {
    "module": "net.mlp",
    "class": "net.Mlp",
    "calls": 4,
    "calls_of_other_forms": 0,
    "share": 0.5,
    "shapes": [{"task": "task.py", "calls": 3}, {"task": None, "calls": 1}],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"shapes": [{"task": "../elsewhere.py", "calls": 3}]},
        {"shapes": [{"task": "/tmp/x.py", "calls": 3}]},
        {"shapes": [{"task": "task.py", "calls": "many"}]},
        {"shapes": []},
        {"shapes": 3},
        {"share": "all"},
        {"class": None},
        {"calls_of_other_forms": []},
    ],
)
def test_a_manifest_of_another_form_counts_as_none(tmp_path: Path, changed: dict[str, Any]) -> None:
    """A captured folder may come from elsewhere; its shapes are files in it."""
    (tmp_path / "task.py").write_text("class Model: pass\ndef get_inputs(): return []\n")
    task = load_task(tmp_path / "task.py", device="cpu")
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(MANIFEST_TEXT))
    assert manifest_of(task) == MANIFEST_TEXT
    file.write_text(json.dumps(MANIFEST_TEXT | changed))
    assert manifest_of(task) is None


def test_a_linked_or_endless_manifest_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class Model: pass\ndef get_inputs(): return []\n")
    task = load_task(tmp_path / "task.py", device="cpu")
    other, file = tmp_path / "other.json", tmp_path / "manifest.json"
    other.write_text(json.dumps(MANIFEST_TEXT))
    file.symlink_to(other)
    assert manifest_of(task) is None
    file.unlink()
    os.mkfifo(file)
    assert manifest_of(task) is None
    file.unlink()
    file.write_text("[" * 100_000)
    assert manifest_of(task) is None


@pytest.mark.parametrize("content", ["pipe", "link", "[" * 100_000])
def test_results_on_a_script_are_read_from_a_file_of_the_run_only(
    tmp_path: Path, content: str
) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"captured": {"module": "secret"}}')
    run = tmp_path / "run"
    run.mkdir()
    match content:
        case "pipe":
            os.mkfifo(run / "script.json")
        case "link":
            (run / "script.json").symlink_to(outside)
        case text:
            (run / "script.json").write_text(text)
    assert script_results(run) == {}


def test_overlapping_times_of_the_script_show_no_ratio() -> None:
    apart = ScriptTiming((2.0, 2.2), (1.0, 1.1), (3.0, 3.0), (2.0, 2.0), 8, 12)
    assert "2 to 2.2 s before and 1 to 1.1 s after (2.00x)" in apart.lines()[0]
    overlapping = ScriptTiming((1.0, 2.2), (1.0, 1.1), (3.0, 3.0), (2.0, 2.0), 0, 12)
    assert "the ranges overlap: no difference shown" in overlapping.lines()[0]
    assert "the kernel ran in 0 of 12 calls; where gradients are wanted" in overlapping.lines()[1]
    compiled = ScriptTiming((2.0,), (1.0,), (3.0,), (2.0,), 8, 12, compiled=True)
    assert compiled.lines()[-1] == "the script uses torch.compile; it was timed without it"


@pytest.fixture
def busy(tmp_path: Path, python: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Manifest of a captured module that was called with two shapes."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(BUSY)
    order = Order(Path("script.py"), module="net", python=tuple(python))
    manifest, checked = captured(order, Path("task"))
    assert checked == {"difference": 0.0, "note": ""}
    return manifest


@pytest.mark.slow
def test_a_shape_on_which_the_attempt_is_wrong_keeps_the_original(
    busy: dict[str, Any], tmp_path: Path
) -> None:
    assert [shape["calls"] for shape in busy["shapes"]] == [4, 8]
    (tmp_path / "model_new.py").write_text(ONLY_LARGE)
    attempt = freeze(tmp_path / "model_new.py")
    task = load_task(tmp_path / "task", device="cpu")
    with LocalJudge(task, baselines=(EAGER,)) as judge:
        judgement = judge.judge(attempt, Effort.QUICK)
    assert judgement.verdict.accepted, judgement.verdict.detail
    found = judge_shapes(task, attempt, judgement)
    assert found is not None
    first, second = found.shapes
    assert (first.task, first.calls) == ("task.py", 8)
    assert (second.task, second.calls, second.covered) == ("shape_2.py", 4, False)
    assert second.why.startswith("rejected")
    timed = time_swapped(task, busy, attempt, judgement, described(busy))
    assert (timed.swapped, timed.calls) == (8, 12)
    assert len(timed.before_s) == len(timed.after_s) == 2
    with pytest.raises(SwapRefused, match="a package cannot repeat its calls: cache"):
        time_swapped(task, busy | {"objects": ["cache"]}, attempt, judgement, described(busy))


GATE = """
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.5))

    def forward(self, x):
        return torch.tanh(x * self.scale)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(64, 64), Gate()

    def forward(self, x):
        return self.gate(self.up(x))

def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        loss = model(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
FORWARD = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.5))

    def forward(self, x):
        return torch.tanh(x * self.scale)
"""
BACKWARD = """
    def backward(self, x, gradient):
        inner = gradient * (1 - torch.tanh(x * self.scale).square())
        return inner * self.scale, (inner * x).sum(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["own backward", "forward only"])
def test_a_training_script_is_timed_with_the_kernels_own_backward(
    own: bool, tmp_path: Path, python: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(GATE)
    order = Order(Path("script.py"), module="model.gate", python=tuple(python))
    manifest, checked = captured(order, Path("task"))
    assert "error" not in checked
    task = load_task(tmp_path / "task", device="cpu")
    (tmp_path / "model_new.py").write_text(FORWARD + (BACKWARD if own else ""))
    attempt = freeze(tmp_path / "model_new.py")
    task = training_step(task) if own else task
    with LocalJudge(task, baselines=(EAGER,)) as judge:
        judgement = judge.judge(attempt, Effort.QUICK)
    assert judgement.verdict.accepted, judgement.verdict.detail
    timed = time_swapped(task, manifest, attempt, judgement, described(manifest))
    assert (timed.swapped, timed.calls) == (5 if own else 0, 5)
    advised = "where gradients are wanted your module runs: optimize with --backward"
    assert (advised in "\n".join(timed.lines())) is not own


def described(manifest: dict[str, Any]) -> Captured:
    """The captured module, without further shapes."""
    kind = manifest["class"].rpartition(".")[2]
    return Captured(manifest["module"], kind, manifest["call"], manifest["autocast"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("script", "module", "arguments"),
    [(TRAINING, "blocks.1", "--steps 5"), (DECODER, "net", "")],
    ids=["training", "decoder"],
)
def test_a_script_is_captured_and_optimized_in_one_command(
    script: str, module: str, arguments: str, tmp_path: Path, command_python: list[str]
) -> None:
    (tmp_path / "script.py").write_text(script)
    command = [*command_python, "-m", "cuagent", "optimize", "script.py", "--module", module]
    command += ["--script-args", arguments, "--model", "expert", "--output-format", "json"]
    command += ["--max-time", "90s"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["task"] == module
    assert "the rebuilt module gives the recorded result" in done.stderr
    if result["attempt"] is not None:
        found = json.loads((tmp_path / result["folder"] / "script.json").read_text())
        assert sum(shape["calls"] for shape in found["shapes"]) in (5, 8)
        assert found["weighted"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    slow_after(
        2,
        [
            (["--script-args", "x"], "--script-args needs --module"),
            (["--module", "net"], "script.py: no such file"),
            (["--time-script"], "--time-script needs --module"),
            (["--seed-kernel", "missing"], "missing: no such file or folder; name your kernel"),
        ],
    ),
)
def test_options_of_a_script_without_one(
    options: list[str], said: str, tmp_path: Path, command_python: list[str]
) -> None:
    command = [*command_python, "-m", "cuagent", "optimize", "script.py", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert said in done.stderr


FOREIGN = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1


def get_inputs():
    return [torch.randn(8, 8)]
"""


def test_the_script_of_a_captured_folder_from_elsewhere_is_not_run(
    tmp_path: Path, command_python: list[str]
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.py").write_text(FOREIGN)
    (tmp_path / "train.py").write_text("from pathlib import Path; Path('ran').touch()")
    named = {"script": str(tmp_path / "train.py"), "arguments": ["--steps", "5"], "cwd": "."}
    (folder / "manifest.json").write_text(json.dumps(MANIFEST_TEXT | named))
    command = [*command_python, "-m", "cuagent", "optimize", "task", "--time-script"]
    command += ["--model", "expert"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    said = f"--time-script would run {tmp_path}/train.py --steps 5 four times with your rights"
    assert said in done.stderr
    assert not (tmp_path / ".cuagent").exists()  # refused before the run
    assert not (tmp_path / "ran").exists()


def test_the_script_of_a_folder_captured_here_needs_no_question(capture: Run) -> None:
    task = load_task(capture(GATE, "model.gate").folder, device="cpu")
    require_trusted_script(task, trust=False)
    file = task.path.parent / "manifest.json"
    file.write_text(file.read_text().replace("script.py", "other.py"))
    with pytest.raises(Refused, match=r"other\.py four times"):
        require_trusted_script(task, trust=False)
    require_trusted_script(task, trust=True)


def test_a_manifest_without_its_script_is_not_timed(tmp_path: Path) -> None:
    captured = Captured("net", "Net", {"positional": []}, None)
    for named in ({}, {"script": 3}, {"script": "train.py", "cwd": ".", "arguments": [1]}):
        with pytest.raises(SwapRefused, match="does not name the script"):
            time_swapped(None, MANIFEST_TEXT | named, None, None, captured)  # type: ignore[arg-type]
