"""Exported rungs: a function that applies the best rung to the user's module, without cuagent."""

from __future__ import annotations

import ast
import importlib
import runpy
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cuagent.measure.rungs import Ladder, Rung
from cuagent.package import Captured, ExportError, export_rung
from cuagent.package.rung import module_text
from cuagent.task import TorchSettings
from cuagent.task.task import Device, Precision, Task
from cuagent.timing import Effort, Ratio
from cuagent.worker.channels_last import to_channels_last

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
        TASK.digest,
        "match",
        "a named processor",
        versions,
        rungs,
        1.0,
        effort=Effort.RECORD,
        settings="fp32 products",
        own_settings=TorchSettings(),
    )


def exported(name: str, out: Path, task: Task = TASK) -> Path:
    found = ladder(name)
    assert found.best is not None
    return export_rung(found.best, found, task, out, measured=date(2026, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager+channels_last", "eager+bf16", "eager+cuda_graph"])
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
    module = torch.nn.Conv2d(3, 4, 3)
    assert imported(folder).faster(module) is module
    assert module.weight.is_contiguous(memory_format=torch.channels_last)


def test_exported_function_changes_layouts_as_the_timed_rung_does(tmp_path: Path) -> None:
    conv2d, conv3d = torch.nn.Conv2d, torch.nn.Conv3d
    layers = conv2d(4, 4, 3), conv2d(4, 4, 1), conv2d(4, 4, 3, groups=4), conv3d(4, 4, 3)
    module = torch.nn.Sequential(*layers)
    timed = to_channels_last(deepcopy(module))
    imported(exported("eager+channels_last", tmp_path / "out")).faster(module)
    for weight, other in zip(module.parameters(), timed.parameters(), strict=True):
        assert weight.stride() == other.stride()


@pytest.mark.parametrize("name", ["compile", "eager+bf16"])
def test_modules_of_the_class_are_changed_in_place_and_restored(name: str, tmp_path: Path) -> None:
    package = imported(exported(name, tmp_path / f"in_place_{name.replace('+', '_')}"))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x / 3

    model = torch.nn.Sequential(Model(), torch.nn.ReLU())
    x = torch.randn(8, 8)
    before, attributes = model(x), [dict(vars(module)) for module in model]
    assert package.optimize_(package.optimize_(model)) is model, "twice changes nothing more"
    changed = [vars(module) != old for module, old in zip(model, attributes, strict=True)]
    assert changed == [True, False]
    assert package.restore_(model) is model
    assert [dict(vars(module)) for module in model] == attributes
    assert torch.equal(model(x), before)
    with pytest.warns(RuntimeWarning, match="has no module of class Model"):
        package.optimize_(torch.nn.ReLU())
    with pytest.warns(RuntimeWarning, match="has no module of class Conv2d"):
        package.optimize_(model, original=torch.nn.Conv2d)


@pytest.mark.parametrize("name", ["compile", "eager+bf16", "compile+bf16"])
def test_copy_is_optimized_again_and_a_compiled_module_is_given_back(
    name: str, tmp_path: Path
) -> None:
    """A copy of a module has no compiled call."""
    package = imported(exported(name, tmp_path / f"copied_{name.replace('+', '_')}"))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x / 3

    model = torch.nn.Sequential(Model())
    model[0].compile(backend="eager")
    own = model[0]._compiled_call_impl
    copied = package.optimize_(deepcopy(package.optimize_(model)))
    assert ("compile" in name) == (copied[0]._compiled_call_impl is not None)
    package.restore_(model)
    assert model[0]._compiled_call_impl is own
    package.restore_(copied)
    assert "forward" not in vars(copied[0])


def test_package_of_a_captured_module_names_the_users_class(tmp_path: Path) -> None:
    found = ladder("eager+channels_last")
    assert found.best is not None
    captured = Captured("net.stem", "Conv2d", None)
    folder = export_rung(found.best, found, TASK, tmp_path / "of_class", captured=captured)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    imported(folder).optimize_(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert "every module of class Conv2d" in (folder / "README.md").read_text()


def imported(folder: Path) -> ModuleType:
    """Import the exported package."""
    sys.path.insert(0, str(folder.parent))
    sys.modules.pop(folder.name, None)
    try:
        return importlib.import_module(folder.name)
    finally:
        sys.path.remove(str(folder.parent))


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("compile", Precision.MATCH, ["module.compile()"]),
        ("reduce-overhead", Precision.MATCH, ['module.compile(mode="reduce-overhead")']),
        ("compile+channels_last", Precision.MATCH, ["channels_last", "module.compile()"]),
        ("eager", Precision.TF32, ['"conv": "tf32"', '"matmul": "none"']),
        ("eager+tf32", Precision.TF32, ['"matmul": "tf32"', "TF32 products, convolutions"]),
        ("eager", Precision.FP32, ['"conv": "ieee"', "fp32 products, convolutions"]),
        ("eager+cuda_graph", Precision.MATCH, ["graph_calls(module)", "import graph_calls"]),
        ("compile+cuda_graph", Precision.MATCH, ["module.compile()", "graph_calls(module)"]),
        ("eager+cudnn_benchmark", Precision.MATCH, ['"cudnn_benchmark": True']),
        ("compile+bf16", Precision.BF16, ['torch.autocast("cuda", torch.bfloat16)']),
    ],
)
def test_module_text_applies_every_rung(
    name: str, precision: Precision, expected: list[str]
) -> None:
    task = replace(TASK, device=Device.CUDA, precision=precision)
    text = module_text(name, task, TorchSettings())
    ast.parse(text)
    assert all(words in text for words in expected)
    assert "torch.backends" not in text


@pytest.mark.parametrize("name", ["reduce-overhead", "max-autotune", "compile+cuda_graph"])
def test_results_of_torchs_own_graphs_are_copied(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled function of the test returns the same memory in each call, as a mode with graphs
    does."""
    folder = exported(name, tmp_path / "fast", replace(TASK, device=Device.CUDA))
    monkeypatch.syspath_prepend(folder)
    made = runpy.run_path(str(folder / "faster.py"))["_with_flags"]
    memory = torch.zeros(3)
    call = made(lambda x: (memory.fill_(x), {"again": memory}))
    first, second = call(1.0), call(2.0)
    copied = name != "compile+cuda_graph"
    assert (first[0].tolist() == [1.0] * 3) == copied
    assert (first[1]["again"].tolist() == [1.0] * 3) == copied
    assert second[0].tolist() == [2.0] * 3
    single = made(lambda x: memory.fill_(x))
    assert (single(1.0) is not memory) == copied


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("eager+tf32", marks=pytest.mark.slow),
        "eager+bf16+tf32",
        pytest.param("compile+tf32", marks=pytest.mark.slow),
        "eager+cudnn_benchmark",
        "eager+cuda_graph",
    ],
)
def test_exported_rung_runs_under_its_settings_and_leaves_the_users(
    name: str, tmp_path: Path, python: list[str]
) -> None:
    task = replace(TASK, device=Device.CUDA, precision=Precision.TF32)
    exported(name, tmp_path / "fast", task)
    module = tmp_path / "fast" / "faster.py"
    module.write_text(module.read_text().replace('autocast("cuda"', 'autocast("cpu"'))
    wanted = "tf32" if "tf32" in name else "none"
    done = subprocess.run(
        [*python, "-c", OPPOSITE.format(folder=str(tmp_path), wanted=wanted, name=name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


OPPOSITE = """
import copy, sys, torch
sys.path.insert(0, {folder!r})
compiled = torch.nn.Module.compile
torch.nn.Module.compile = lambda self: compiled(self, backend="eager")  # no compiler is needed
import fast
from fast.flags import read_flags
seen = []
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x, fail=False):
        seen.append(read_flags())
        if fail:
            raise KeyError(fail)
        return self.linear(x)
torch.backends.cudnn.allow_tf32 = False  # the opposite of what the rung was measured under
torch.set_float32_matmul_precision("highest" if {wanted!r} == "tf32" else "high")
before = read_flags()
net = fast.faster(Net())
assert read_flags() == before
x = torch.ones(2, 4)
for fail in False, True:
    try:
        net(x, fail=fail)
    except KeyError:
        assert fail
    assert (seen[-1]["matmul"] in ("none", "ieee")) == ({wanted!r} == "none"), seen[-1]
    assert seen[-1]["conv"] == "tf32", seen[-1]
    assert seen[-1]["cudnn_benchmark"] == ("cudnn_benchmark" in {name!r})
    assert read_flags() == before, (read_flags(), before)
if {name!r} == "eager":
    other = copy.deepcopy(net)
    other.linear.weight.data.zero_(), other.linear.bias.data.zero_()
    assert other(x).abs().max() == 0 != net(x).abs().max()
"""


def test_readme_contains_measured_ladder(tmp_path: Path) -> None:
    text = (exported("eager+channels_last", tmp_path / "out") / "README.md").read_text()
    assert "| eager+channels_last | 1.000 ms | 2.000x | 1.900 to 2.100 (faster) | 1.0e-07 |" in text
    assert "Measured on a named processor (torch 9.9); precision match." in text
    assert "Baselines: fp32 products. `faster` sets this around a call only." in text
    assert "without a kernel: eager PyTorch, channels_last. Measured with cuagent" in text
    assert "on 2026-01-02." in text


@pytest.mark.slow
def test_exported_rung_installs_with_pip(tmp_path: Path, python: list[str]) -> None:
    folder = exported("eager+channels_last", tmp_path / "out")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
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
