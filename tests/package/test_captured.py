"""Packages of modules that were captured from a user's script: `optimize_` on the script's own."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blocks import close
from torch import nn

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import Captured, guarded_files
from cuagent.task.task import Task
from cuagent.verify.domain import Domain, TensorForm

SCRIPT = """
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self, width, number):
        super().__init__()
        self.number = number
        self.slope = 0.5
        self.weight = nn.Parameter(torch.randn(width))
        self.drop = nn.Dropout(0.0)

    def forward(self, x, y, scale=1.0, cache=None):
        return self.drop(x * self.weight * self.slope) + scale * y
"""
TASK = (
    SCRIPT
    + """

class Model(Gate):
    def __init__(self):
        nn.Module.__init__(self)
        self.number, self.slope, self.training = 0, 0.5, True
        self.drop = nn.Dropout(0.0)
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x, y):
        return super().forward(x, y, scale=2.0)
"""
)
KERNEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    ran = 0

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x, y):
        ModelNew.ran += 1
        assert not torch.is_autocast_enabled("cpu")
        return torch.addcmul(2.0 * y, x, self.weight, value=0.5)
"""
INIT = '{"kind": "list", "items": [{"kind": "list", "items": []}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
PAIR = '{"kind": "list", "items": [{"kind": "tensor"}, {"kind": "tensor"}]}'
CALL = {
    "inputs": 2,
    "positional": [{"tensor": 0}, {"tensor": 1}],
    "named": {"scale": {"const": 2.0}},
}


def domain(rows: int) -> Domain:
    form = TensorForm("float32", (rows, 8), (8, 1))
    return Domain("cpu", ("x", "y"), PAIR, (form, form), INIT)


def package_of(folder: Path, name: str, captured: Captured, task: str = TASK) -> ModuleType:
    made = Task(path=Path("task.py"), entry="Model", source=task)
    attempt = Attempt((("model_new.py", KERNEL),))
    write_files(guarded_files(attempt, made, domain(4), "reference.py", captured), folder / name)
    (folder / name / "__init__.py").write_text("from .model_new import optimize_, restore_\n")
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("captured")
    (folder / "net_gates.py").write_text(SCRIPT)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("net_gates", None)


@pytest.fixture(scope="module")
def package(place: Path) -> ModuleType:
    captured = Captured("net.gates.0", "Gate", CALL, None, (domain(6),))
    return package_of(place, "gate_fast", captured)


@pytest.fixture
def gate(place: Path) -> Callable[[int], Any]:
    torch.manual_seed(0)
    kind = importlib.import_module("net_gates").Gate
    return lambda number: kind(8, number)


def kernel_ran(package: ModuleType) -> int:
    count: int = sys.modules[f"{package.__name__}.model_new_verified.model_new"].ModelNew.ran
    return count


def inputs(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randn(rows, 8)


def test_all_modules_of_the_class_run_the_kernel_though_unread_attributes_differ(
    package: ModuleType, gate: Callable[[int], Any]
) -> None:
    model = nn.ModuleList([gate(0), gate(1)])
    plain = copy.deepcopy(model)
    package.optimize_(model, gradients=True)
    x, y = inputs()
    before = kernel_ran(package)
    for one, other in zip(model, plain, strict=True):
        assert one.why_original(x, y, scale=2.0) == ""
        close(one(x, y, scale=2.0), other(x, y, scale=2.0))
    assert kernel_ran(package) == before + 2
    assert model[1].number == 1


def test_a_module_that_differs_in_an_attribute_of_its_call_stays(
    package: ModuleType, gate: Callable[[int], Any]
) -> None:
    model = gate(0)
    model.slope = 0.25
    importlib.import_module(f"{package.__name__}.model_new").PACKAGE.warned.clear()
    with pytest.warns(RuntimeWarning, match="attribute slope of the module differs"):
        package.optimize_(model, gradients=True)
    assert "why_original" not in dir(model)


def test_the_warning_counts_the_modules_that_run_the_kernel(
    package: ModuleType, gate: Callable[[int], Any]
) -> None:
    model = nn.ModuleList([gate(0), gate(1), gate(2)])
    model[2].slope = 0.125
    importlib.import_module(f"{package.__name__}.model_new").PACKAGE.warned.clear()
    with pytest.warns(RuntimeWarning, match="2 of 3 modules run the kernel; not the others"):
        package.optimize_(model, gradients=True)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((0, 1), {"scale": 2.0}),
        ((0, 1, 2.0), {}),
        ((0,), {"y": 1, "scale": 2.0}),
        ((0, 1), {"scale": 2.0, "cache": None}),
    ],
)
def test_the_recorded_call_in_any_spelling_runs_the_kernel(
    args: tuple[Any, ...],
    named: dict[str, Any],
    package: ModuleType,
    gate: Callable[[int], Any],
) -> None:
    model = package.optimize_(gate(0), gradients=True)
    given = inputs()
    tensor = lambda item: given[item] if type(item) is int else item  # noqa: E731
    args, named = tuple(map(tensor, args)), {k: tensor(v) for k, v in named.items()}
    before = kernel_ran(package)
    model(*args, **named)
    assert kernel_ran(package) == before + 1


@pytest.mark.parametrize(
    "named",
    [{}, {"scale": 3.0}, {"scale": 2}, {"scale": 2.0, "cache": 1}, {"scale": torch.ones(())}],
)
def test_a_call_with_other_constants_is_the_users(
    named: dict[str, Any], package: ModuleType, gate: Callable[[int], Any]
) -> None:
    plain = gate(0)
    model = package.optimize_(copy.deepcopy(plain), gradients=True)
    x, y = inputs()
    before = kernel_ran(package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(model(x, y, **named), plain(x, y, **named))
    assert kernel_ran(package) == before


@pytest.mark.parametrize("compiled", [False, True])
def test_each_accepted_shape_runs_the_kernel_and_others_the_original(
    compiled: bool, package: ModuleType, gate: Callable[[int], Any]
) -> None:
    plain = gate(0)
    model = package.optimize_(copy.deepcopy(plain), gradients=True)
    call = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    for rows, runs in ((4, 1), (6, 1), (5, 0)):
        x, y = inputs(rows)
        before = kernel_ran(package)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            close(call(x, y, scale=2.0), plain(x, y, scale=2.0))
        assert kernel_ran(package) == before + runs, rows


def test_training_runs_the_kernel_with_the_gradients_of_the_original(
    package: ModuleType, gate: Callable[[int], Any]
) -> None:
    plain = gate(0)
    model = package.optimize_(copy.deepcopy(plain), gradients=True).train()
    for rows in (4, 6):
        x, y = inputs(rows)
        results = []
        for each in (model, plain):
            given = x.clone().requires_grad_(), y.clone().requires_grad_()
            each.zero_grad()
            each(*given, scale=2.0).square().sum().backward()
            results.append([given[0].grad, given[1].grad, each.weight.grad])
        for one, other in zip(*results, strict=True):
            close(one, other)


@pytest.mark.parametrize("compiled", [False, True])
def test_without_gradients_of_the_package_training_is_the_users(
    compiled: bool, package: ModuleType, gate: Callable[[int], Any]
) -> None:
    model = package.optimize_(gate(0), gradients=False).train()
    call = torch.compile(model, backend="eager") if compiled else model
    given, before = inputs(), kernel_ran(package)
    call(*given, scale=2.0).sum().backward()
    assert "gradients=False" in model.why_original(*given, scale=2.0)
    assert kernel_ran(package) == before
    with torch.no_grad():
        call(*given, scale=2.0)
    assert kernel_ran(package) == before + 1


def test_a_dropout_that_drops_makes_training_the_users(
    place: Path, gate: Callable[[int], Any]
) -> None:
    drops = TASK.replace("nn.Dropout(0.0)", "nn.Dropout(0.3)")
    (place / "drops.py").write_text(SCRIPT.replace("nn.Dropout(0.0)", "nn.Dropout(0.3)"))
    package = package_of(place, "drop_fast", Captured("net", "Gate", CALL), drops)
    model = importlib.import_module("drops").Gate(8, 0)
    with pytest.warns(RuntimeWarning, match="drop is in training mode"):
        package.optimize_(model, gradients=True)(*inputs(), scale=2.0)
    assert model.eval().why_original(*inputs(), scale=2.0) == ""


def test_calls_under_autocast_need_the_recorded_autocast(
    place: Path, gate: Callable[[int], Any]
) -> None:
    captured = Captured("net", "Gate", CALL, "bfloat16")
    package = package_of(place, "cast_fast", captured)
    model = package.optimize_(gate(0).eval())
    given = inputs()
    assert "not under autocast to bfloat16" in model.why_original(*given, scale=2.0)
    with torch.autocast("cpu", torch.float16):
        assert "autocast is not to bfloat16" in model.why_original(*given, scale=2.0)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert model.why_original(*given, scale=2.0) == ""
        model(*given, scale=2.0)
    assert kernel_ran(package) == 1


def test_a_call_that_holds_objects_leaves_the_original(
    place: Path, gate: Callable[[int], Any]
) -> None:
    package = package_of(place, "object_fast", Captured("net", "Gate", None))
    with pytest.warns(RuntimeWarning, match="change objects that a package cannot repeat"):
        package.optimize_(gate(0), gradients=True)


def test_a_module_with_the_kernel_of_another_package_keeps_it(
    place: Path, package: ModuleType, gate: Callable[[int], Any]
) -> None:
    other = package_of(place, "other_fast", Captured("net.gates.0", "Gate", CALL))
    model = package.optimize_(gate(0))
    with pytest.warns(RuntimeWarning, match="runs the kernel of another package; call restore_"):
        other.optimize_(model)
    other.optimize_(package.restore_(model))
    before = kernel_ran(other)
    with torch.no_grad():
        model(*inputs(), scale=2.0)
    assert kernel_ran(other) == before + 1
