"""Guarded exports: the kernel runs for verified calls, the original for all others."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task.task import Task
from cuagent.verify.domain import Domain, TensorForm

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.fc.weight
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x, scale=2.0):
        self.calls = self.calls + 1
        return self.head(self.fc(self.norm(x))) * scale + self.eps

def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [8]
"""
# Correct only for 4 rows, in eval mode and without gradients.
KERNEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super(ModelNew, self).__init__()
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, width, bias=False)
        self.ran = 0
        self.forward = self.kernel

    @torch.no_grad()
    def kernel(self, inp):
        self.ran += 1
        x = torch.as_strided(inp, (4, 8), (8, 1))
        n, f, h = self.norm, self.fc, self.head
        x = (x - n.running_mean) * torch.rsqrt(n.running_var + n.eps) * n.weight + n.bias
        return ((x @ f.weight.T + f.bias) @ h.weight.T) * 2.0 + 1e-5
"""
INIT = '{"kind": "list", "items": [{"kind": "list", "items": [{"kind": "const", "value": 8}]}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
DOMAIN = Domain(
    "cpu",
    ("x", "scale"),
    '{"kind": "list", "items": [{"kind": "tensor"}]}',
    (TensorForm("float32", (4, 8), (8, 1)),),
    INIT,
)
TASK = Task(path=Path("net.py"), entry="Model", source=REFERENCE)
ATTEMPT = Attempt((("model_new.py", KERNEL),))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("guard") / "guarded_net"
    write_files(guarded_files(ATTEMPT, TASK, DOMAIN, "reference.py"), folder)
    (folder / "__init__.py").write_text("")
    sys.path.insert(0, str(folder.parent))
    yield importlib.import_module("guarded_net.model_new")
    sys.path.remove(str(folder.parent))


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture
def original(module: ModuleType) -> Any:
    scope: dict[str, Any] = {}
    exec(REFERENCE, scope)
    torch.manual_seed(1)
    made = scope["Model"](8).eval()
    made.norm.running_mean.normal_()
    made.norm.running_var.uniform_(0.5, 2)
    return made


@pytest.fixture
def model(module: ModuleType, original: Any) -> Any:
    made = module.ModelNew(8).eval()
    made.load_state_dict(original.state_dict())
    return made


def ran(model: Any) -> int:
    return int(model._kernel.ran)


def test_verified_call_runs_kernel(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x))
        torch.testing.assert_close(model(x=x), original(x))
    assert ran(model) == 2
    assert model.why_original(x=x) != "", "gradients are enabled here"
    with torch.no_grad():
        assert model.why_original(x) == ""


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "nested"])
def test_tensor_without_strides_gets_what_the_original_gives(
    model: Any, original: Any, layout: str
) -> None:
    x = torch.randn(4, 8)
    made = {
        "sparse_coo": x.to_sparse,
        "sparse_csr": x.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([x[0], x[1]]),
    }[layout]()
    with torch.no_grad():
        assert f"argument 0 is a {layout} tensor of float32" in model.why_original(made)
        for module in (model, original):
            module.norm = torch.nn.Identity()  # a BatchNorm takes no sparse tensor
        outcomes = []
        for module in (original, model):
            try:
                outcomes.append(module(made))
            except (RuntimeError, NotImplementedError) as error:
                outcomes.append(str(error))
    if isinstance(outcomes[0], torch.Tensor) and layout != "nested":
        torch.testing.assert_close(outcomes[1], outcomes[0])
    else:
        assert type(outcomes[0]) is type(outcomes[1])
    assert ran(model) == 0


def test_sparse_parameter_gets_the_original(model: Any) -> None:
    model.fc.weight = torch.nn.Parameter(torch.eye(8).to_sparse())
    with torch.no_grad():
        assert "fc.weight is a sparse_coo tensor" in model.why_original(torch.randn(4, 8))


OTHERS = {
    "shape": (lambda: torch.randn(2, 8), "argument 0 is float32[2, 8]"),
    "batch": (lambda: torch.randn(16, 8), "verified was float32[4, 8] on cpu"),
    "strides": (lambda: torch.randn(8, 4).t(), "strides [1, 4]"),
    "misaligned": (lambda: torch.randn(33)[1:].view(4, 8), "not aligned to 16 bytes"),
    "negative bit": (lambda: torch.randn(4, 8, dtype=torch.cfloat).conj().imag, "argument 0"),
    "subclass": (lambda: torch.randn(4, 8).as_subclass(Odd), "(Odd)"),
}


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize("name", OTHERS)
def test_unverified_input_runs_original(name: str, model: Any, original: Any) -> None:
    make, why = OTHERS[name]
    x = make()
    with torch.no_grad():
        assert why in model.why_original(x)
        torch.testing.assert_close(model(x), original(x))
    assert ran(model) == 0


def test_unverified_dtype_runs_original(model: Any, original: Any) -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    model.double()
    original.double()
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x))
        model.float()
        original.float()
        torch.testing.assert_close(model(x.float()), original(x.float()))
    assert ran(model) == 1, "the module has its verified dtype again"


def test_parameter_with_other_strides_runs_original(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad():
        model(x)
        model.fc.weight = torch.nn.Parameter(original.fc.weight.t().contiguous().t())
        assert "fc.weight" in model.why_original(x)
        torch.testing.assert_close(model(x), original(x))
    assert ran(model) == 1


def test_transposed_parameter_in_the_same_memory_runs_original(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad():
        model(x)
        for each in (model, original):
            each.fc.weight.data = each.fc.weight.data.t()
        assert "fc.weight" in model.why_original(x)
        torch.testing.assert_close(model(x), original(x))
    assert ran(model) == 1


def test_unverified_arguments_run_original(model: Any, original: Any, module: ModuleType) -> None:
    x = torch.randn(4, 8)
    other = module.ModelNew(8, eps=0.5).eval()
    other.load_state_dict(original.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x, 3.0), original(x, 3.0))
        torch.testing.assert_close(model(x, scale=3.0), original(x, scale=3.0))
        torch.testing.assert_close(other(x) - original(x), torch.full((4, 8), 0.5 - 1e-5))
        model.eps = original.eps = 7.0
        torch.testing.assert_close(model(x), original(x))
    assert ran(model) == ran(other) == 0


def test_gradients_equal_those_of_original(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    for made in (model, original):
        made(x).square().sum().backward()
    names = dict(model.named_parameters())
    assert names.keys() == dict(original.named_parameters()).keys(), "tied weights count once"
    for name, parameter in original.named_parameters():
        torch.testing.assert_close(names[name].grad, parameter.grad)
    assert ran(model) == 0
    model.requires_grad_(False)
    model(x)
    assert ran(model) == 1, "no tensor requires a gradient"
    model(x.requires_grad_())
    assert ran(model) == 1


def test_training_mode_runs_original_and_keeps_its_statistics(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    for made in (model, original):
        made.train()
        with torch.no_grad():
            made(x)
        made.eval()
    torch.testing.assert_close(model.norm.running_mean, original.norm.running_mean)
    assert model.norm.num_batches_tracked == 1
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x))
        assert ran(model) == 1
        model.norm.train()
        assert "norm is in training mode" in model.why_original(x)


def test_autocast_and_transforms_run_original(model: Any, original: Any) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == original(x).dtype
    with torch.no_grad():
        batched = torch.func.vmap(lambda row: model(row.view(1, 8)).view(8))(x)
        torch.testing.assert_close(batched, original(x))
    assert ran(model) == 0


def test_reason_is_warned_once(model: Any) -> None:
    x = torch.randn(5, 8)
    type(model)._warned.clear()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        model(x)
        model(x)
    texts = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert len(texts) == 1
    assert "the original module runs, not the kernel: argument 0 is float32[5, 8]" in texts[0]


def test_kernel_and_original_share_parameters(model: Any) -> None:
    with torch.no_grad():
        model(torch.randn(3, 8))
    original = model._original
    assert original.fc.weight is model.fc.weight is model._kernel.fc.weight
    assert original.norm.running_mean is model.norm.running_mean
    assert len(list(model.modules())) == 4


def copies(model: Any) -> Iterator[Any]:
    yield copy.deepcopy(model)
    yield pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    yield torch.load(file, weights_only=False)


def test_copies_are_guarded_and_share_no_state_with_model(model: Any, original: Any) -> None:
    x, other = torch.randn(4, 8), torch.randn(6, 8)
    with torch.no_grad():
        model(other)
        for made in copies(model):
            before = ran(made)
            torch.testing.assert_close(made(x), original(x))
            assert ran(made) == before + 1
            torch.testing.assert_close(made(other), original(other))
            made.fc.bias.add_(1)
            assert not torch.equal(made(x), model(x))
            assert not torch.equal(made(other), model(other)), "the copy has its original"


def test_state_dict_loads_into_other_models(model: Any, original: Any, module: ModuleType) -> None:
    other = module.ModelNew(8).eval()
    other.load_state_dict(model.state_dict(), assign=True)
    assert model.state_dict().keys() == original.state_dict().keys()
    x, longer = torch.randn(4, 8), torch.randn(9, 8)
    outer = torch.nn.Sequential(module.ModelNew(8)).eval()
    outer.load_state_dict({f"0.{k}": v for k, v in model.state_dict().items()})
    with torch.no_grad():
        for made in (other, outer):
            torch.testing.assert_close(made(x), original(x))
            torch.testing.assert_close(made(longer), original(longer))
    assert ran(other) == ran(outer[0]) == 1


def test_compiled_outer_module_runs_kernel(model: Any, original: Any) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * 2) + 1

    compiled = torch.compile(Outer().eval(), backend="eager")
    x, longer = torch.randn(4, 8), torch.randn(6, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), original(x * 2) + 1)
        assert ran(model) == 1
        torch.testing.assert_close(compiled(longer), original(longer * 2) + 1)
    assert ran(model) == 1


def test_guard_takes_less_than_50_microseconds(model: Any) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert model._fits((x,))
        rounds = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                model._fits((x,))
            rounds.append((time.perf_counter() - start) / 200)
    assert min(rounds) < 50e-6, f"{min(rounds) * 1e6:.1f} us a call"


CHANGES: dict[str, Any] = {
    "attribute": lambda m: setattr(m.norm, "eps", 1.0),
    "private attribute": lambda m: setattr(m.fc, "_rate", 1.0),
    "hook": lambda m: m.norm.register_forward_hook(lambda inner, args, out: out * 2),
    "hook before": lambda m: m.fc.register_forward_pre_hook(lambda inner, args: (args[0] + 1,)),
    "function": lambda m: setattr(m.fc, "forward", lambda x: x * 3),
    "module": lambda m: setattr(m, "norm", torch.nn.Tanh().eval()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_submodule_runs_original_with_the_change(
    change: str, model: Any, original: Any
) -> None:
    """The kernel of this module reads eps, but calls no submodule."""
    x = torch.randn(4, 8)
    with torch.no_grad():
        model(x)
        for module in (model, original):
            CHANGES[change](module)
        torch.testing.assert_close(model(x), original(x))
        assert "was changed or replaced" in model.why_original(x)


def test_private_attribute_that_the_kernel_has_runs_original(model: Any) -> None:
    """`ModelNew` has no attribute of its own for it."""
    model._kernel._rate = 0.5
    assert model.why_original(torch.randn(4, 8)).startswith("gradients")
    model._other = 1.0
    assert model.why_original(torch.randn(4, 8)).startswith("gradients")
    model._rate = 2.0
    assert "_rate" in model.why_original(torch.randn(4, 8))


def test_missing_import_of_original_raises_instead_of_running_kernel(tmp_path: Path) -> None:
    broken = Task(path=Path("net.py"), entry="Model", source="import not_there_at_all\n")
    folder = tmp_path / "guarded_broken"
    write_files(guarded_files(ATTEMPT, broken, DOMAIN, "reference.py"), folder)
    (folder / "__init__.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    try:
        model = importlib.import_module("guarded_broken.model_new").ModelNew(8).eval()
        with torch.no_grad():
            model(torch.randn(4, 8))
            with pytest.raises(RuntimeError, match=r"verified for x: float32\[4, 8\] on cpu only"):
                model(torch.randn(5, 8))
        assert ran(model) == 1
    finally:
        sys.path.remove(str(tmp_path))
