"""Tests of a package whose kernel has a verified backward: training runs it, and nothing breaks."""

from __future__ import annotations

import copy
import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import close
from torch import nn

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.package.readme import _verified as verified_lines
from cuagent.task import load_task
from cuagent.task.step import training_step
from cuagent.verify.domain import Domain, TensorForm

USERS = """
import torch
from torch import nn
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
    def forward(self, x, rows):
        y = torch.tanh(x) * self.w * self.frozen
        return y, y[rows]
"""
KERNEL = (
    USERS.replace("class Gate", "class ModelNew")
    + """
    ran = 0
    def backward(self, x, rows, a, b):
        assert not torch.is_grad_enabled() and a.is_contiguous() and b.is_contiguous()
        self.ran += 1
        t, g = torch.tanh(x), a.index_add(0, rows, b)
        g = g * self.frozen
        return g * self.w * (1 - t * t), (g * t).sum(0)
"""
)


def _domain() -> Domain:
    forms = [("float32", (4, 8)), ("int64", (3,)), ("float32", (4, 8)), ("float32", (3, 8))]
    return Domain(
        "cpu",
        ("x", "rows", "cotangent_0", "cotangent_1"),
        json.dumps({"kind": "list", "items": [{"kind": "tensor"}] * 4}),
        tuple(TensorForm(d, s, (*s[1:], 1)) for d, s in forms),
        '{"kind": "list", "items": [{"kind": "list", "items": []}, '
        '{"kind": "dict", "keys": [], "items": []}]}',
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("trained")
    inputs = "def get_inputs(): return [torch.randn(4, 8), torch.randint(0, 4, (3,))]\n"
    (folder / "users_gates.py").write_text(USERS + inputs)
    step = training_step(load_task(f"{folder / 'users_gates.py'}:Gate", device="cpu"))
    files = guarded_files(Attempt((("model_new.py", KERNEL),)), step, _domain(), "reference.py")
    write_files(files, folder / "gate_trained")
    (folder / "gate_trained/__init__.py").write_text("from .model_new import optimize_, restore_\n")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("users_gates", None)


@pytest.fixture
def pair(folder: Path) -> tuple[Any, Any]:
    """The user's module, and a copy that runs the kernel."""
    torch.manual_seed(0)
    original = importlib.import_module("users_gates").Gate()
    nn.init.normal_(original.w)
    model = importlib.import_module("gate_trained").optimize_(copy.deepcopy(original))
    return original, model


def ran(model: Any) -> int:
    return int(model.__dict__["_cuagent_replacement"].kernel.ran)


ROWS = torch.tensor([1, 1, 3])


def gradients(model: Any, x: Any, *, again: bool = False) -> Any:
    """Return the gradients of a loss that reads both outputs, and one by an expanded gradient."""
    y, picked = model(x, ROWS)
    wanted = [t for t in (x, *model.parameters()) if t.requires_grad]
    return torch.autograd.grad(
        y.square().sum() + picked.sum(), wanted, create_graph=again, allow_unused=True
    )


def test_training_runs_the_verified_backward(pair: tuple[Any, Any]) -> None:
    original, model = pair
    x = torch.randn(4, 8, requires_grad=True)
    assert model.why_original(x, ROWS) == ""
    model.train()
    original.train()
    for one, other in zip(gradients(original, x), gradients(model, x), strict=True):
        assert (one is None) == (other is None), "a parameter without a gradient keeps None"
        close(one, other)
    assert ran(model) == 1


def test_readme_does_not_say_that_gradients_run_the_original(folder: Path) -> None:
    task = load_task(f"{folder / 'users_gates.py'}:Gate", device="cpu")
    with_backward, without = (
        " ".join(verified_lines(task, None, _domain(), None, trains=trains))
        for trains in (True, False)
    )
    assert "with or without gradients" in with_backward
    assert "training mode, gradients" not in with_backward
    assert "training mode, gradients" in without


def test_some_gradients_and_some_outputs_are_enough(pair: tuple[Any, Any]) -> None:
    original, model = pair
    x = torch.randn(4, 8, requires_grad=True)
    found = [torch.autograd.grad(made(x, ROWS)[1].sum(), [x]) for made in pair]
    close(*found)
    for made in pair:
        made.w.requires_grad_(False)
    close(gradients(original, x), gradients(model, x))
    assert ran(model) == 2


def test_second_gradients_are_those_of_the_original(pair: tuple[Any, Any]) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    found = []
    for made in pair:
        first = gradients(made, x, again=True)[0]
        found.append(torch.autograd.grad(first.square().sum(), [x, made.w]))
    close(*found)


def test_calls_between_forward_and_backward_change_nothing(pair: tuple[Any, Any]) -> None:
    found = []
    for made in pair:
        torch.manual_seed(5)
        a, b = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
        first, second = made(a, ROWS)[0], made(b, ROWS)[0]
        found.append(
            [
                torch.autograd.grad(first.sum(), [a, made.w], retain_graph=True),
                torch.autograd.grad(second.sum(), [b, made.w]),
                torch.autograd.grad(first.sum(), [a, made.w]),
            ]
        )
    close(*found)


def test_parameter_changed_before_backward_is_an_error_as_in_torch(pair: tuple[Any, Any]) -> None:
    for made in pair:
        y = made(torch.randn(4, 8, requires_grad=True), ROWS)[0].sum()
        with torch.no_grad():
            made.w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_gradients_are_those_of_the_parameters_of_the_forward(pair: tuple[Any, Any]) -> None:
    x, found = torch.randn(4, 8, requires_grad=True), []
    for made in pair:
        old = made.w
        y = made(x, ROWS)[0].sum()
        made.w = nn.Parameter(torch.ones(8))
        found.append(torch.autograd.grad(y, [x, old]))
        other = {"w": torch.full((8,), 2.0, requires_grad=True), "unused": made.unused}
        y = torch.func.functional_call(made, other, (x, ROWS))[0].sum()
        found[-1] += torch.autograd.grad(y, [x, other["w"]])
    close(*found)


def test_parameter_that_is_trained_only_later_has_a_gradient(pair: tuple[Any, Any]) -> None:
    """No verdict covers the gradient of a parameter that was frozen when the kernel was judged."""
    x = torch.randn(4, 8, requires_grad=True)
    for compiled in (False, True):
        found = []
        for made in pair:
            made.frozen.requires_grad_()
            call = torch.compile(made, backend="aot_eager") if compiled else made
            y = call(x, ROWS)[0].square().sum()
            found.append(torch.autograd.grad(y, [x, made.w, made.frozen]))
        close(*found)
    assert ran(pair[1]) == 0


def test_hooks_for_saved_tensors_and_batched_gradients_keep_their_meaning(
    pair: tuple[Any, Any],
) -> None:
    x, found = torch.randn(4, 8, requires_grad=True), []
    for made in pair:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
        with hooks:
            y = made(x, ROWS)[0].square().sum()
        with torch.no_grad():
            made.w.mul_(3)
        many = torch.autograd.functional.jacobian(lambda z, m=made: m(z, ROWS), x, vectorize=True)
        found.append([*torch.autograd.grad(y, [x, made.w]), *many])
    close(*found)


def test_kernel_computes_with_arguments_without_gradients(folder: Path) -> None:
    model = importlib.import_module("gate_trained").optimize_(
        importlib.import_module("users_gates").Gate()
    )
    kernel = model.__dict__["_cuagent_replacement"].kernel
    backward, seen = kernel.backward, []
    kernel.backward = lambda x, *more: seen.append(x.requires_grad) or backward(x, *more)
    gradients(model, torch.randn(4, 8, requires_grad=True))
    assert seen == [False]


def test_whole_graph_trains_with_the_kernel(pair: tuple[Any, Any]) -> None:
    original, model = pair
    x = torch.randn(4, 8, requires_grad=True)
    call = torch.compile(model, fullgraph=True, backend="aot_eager")
    for one, other in zip(
        torch.autograd.grad(sum(t.square().sum() for t in original(x, ROWS)), [x, original.w]),
        torch.autograd.grad(sum(t.square().sum() for t in call(x, ROWS)), [x, model.w]),
        strict=True,
    ):
        close(one, other)
    assert ran(model) == 1


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("permuted", [False, True])
def test_operator_with_a_backward_passes_opcheck(
    permuted: bool, wanted: bool, pair: tuple[Any, Any]
) -> None:
    replacement = pair[1].__dict__["_cuagent_replacement"]
    x = torch.randn(8, 4).t() if permuted else torch.randn(4, 8)
    x.requires_grad_(wanted)
    state = [
        t.detach().clone().requires_grad_(wanted and t.requires_grad)
        for t in replacement.watch.tensors
    ]
    found = torch.library.opcheck(replacement.boundary.call, ([x, ROWS], state))
    assert set(found.values()) == {"SUCCESS"}


def test_other_shapes_and_gradients_false_train_the_users_module(folder: Path) -> None:
    gates, package = importlib.import_module("users_gates"), importlib.import_module("gate_trained")
    model = package.optimize_(gates.Gate())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients(model, torch.randn(5, 8, requires_grad=True))
    never = package.optimize_(gates.Gate(), gradients=False)
    gradients(never, torch.randn(4, 8, requires_grad=True))
    assert (ran(model), ran(never)) == (0, 0)


def test_copies_and_state_keep_the_backward(pair: tuple[Any, Any]) -> None:
    original, model = pair
    twin = copy.deepcopy(model)
    twin.load_state_dict(original.state_dict())
    x = torch.randn(4, 8, requires_grad=True)
    close(gradients(twin, x)[:2], gradients(original, x)[:2])
    assert (ran(twin), ran(model)) == (1, 0)
