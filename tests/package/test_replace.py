"""`optimize_` and `restore_` of an exported package, on the user's own instances."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blocks import KERNEL, REPLACEMENT, TAIL, USERS, X, close, drawn, ran, written
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task import load_task
from cuagent.verify.domain import Domain, TensorForm

pytestmark = pytest.mark.usefixtures("silent")


def test_optimized_module_is_the_same_object_and_runs_the_kernel(
    package: ModuleType, original: Any
) -> None:
    module = copy.deepcopy(original)
    inner, names = module.fc, list(module.state_dict())
    package.optimize_(module, gradients=True)
    assert isinstance(module, type(original))
    assert module.fc is inner
    assert list(module.state_dict()) == names
    with torch.no_grad():
        close(module(X), original(X))
        close(module(x=X), original(X))
    assert module.__dict__[REPLACEMENT].kernel.ran == 2
    assert module.why_original(X) == ""


def test_restore_gives_the_original_class_back(
    model: Any, original: Any, package: ModuleType
) -> None:
    assert package.restore_(model) is model
    assert type(model[0]) is type(original)
    assert model[0].__dict__.keys() == original.__dict__.keys()
    package.optimize_(model, gradients=True)
    with torch.no_grad():
        close(model(X), original(X))
    assert ran(model) == 1


CALLED = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x): return torch.tanh(x) * 2
"""
OWN_CALLS = {
    "hook": "    def __init__(self):\n        super().__init__()\n"
    "        self.register_forward_pre_hook(lambda module, given: (torch.tanh(given[0]),))\n"
    "    def forward(self, x): return x * 2\n",
    "call": "    def __call__(self, x): return torch.tanh(x) * 2\n"
    "    def forward(self, x): return x\n",
}


@pytest.mark.parametrize("name", OWN_CALLS)
def test_kernel_is_called_as_it_was_verified(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier calls the module, so its hooks and its own `__call__` are part of the kernel."""
    (tmp_path / f"called_{name}.py").write_text(CALLED)
    task = load_task(tmp_path / f"called_{name}.py", inputs="f32[4,8]", device="cpu")
    kernel = f"import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n{OWN_CALLS[name]}"
    domain = Domain(
        "cpu",
        ("x",),
        '{"kind": "list", "items": [{"kind": "tensor"}]}',
        (TensorForm("float32", (4, 8), (8, 1)),),
        '{"kind": "list", "items": [{"kind": "list", "items": []}, '
        '{"kind": "dict", "keys": [], "items": []}]}',
    )
    files = guarded_files(Attempt((("model_new.py", kernel),)), task, domain, "reference.py")
    write_files(files, tmp_path / f"of_{name}")
    (tmp_path / f"of_{name}/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    optimize_ = importlib.import_module(f"of_{name}.model_new").optimize_
    module = optimize_(importlib.import_module(f"called_{name}").Model())
    assert module.why_original(X) == ""
    with torch.no_grad():
        close(module(X), torch.tanh(X) * 2)


OTHERS = {
    "shape": (torch.randn(2, 8), "argument 0 is float32[2, 8] on cpu; verified was float32[4, 8]"),
    "dtype": (torch.randn(4, 8, dtype=torch.float64), "argument 0 is float64"),
    "strides": (torch.randn(8, 4).t(), "strides [1, 4]"),
    "alignment": (torch.randn(33)[1:].view(4, 8), "not aligned to 16 bytes"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_call_runs_the_users_code(name: str, model: Any, original: Any) -> None:
    x, why = OTHERS[name]
    module = copy.deepcopy(original).to(x.dtype)
    model.to(x.dtype)
    assert why in model[0].why_original(x) or name == "dtype"
    with torch.no_grad():
        close(model(x), module(x))
    assert ran(model) == 0


def test_gradients_are_those_of_the_original(model: Any, original: Any) -> None:
    inputs = [X.clone().requires_grad_() for _ in range(2)]
    for made, x in zip((model, original), inputs, strict=True):
        made(x).square().sum().backward()
    assert ran(model) == 1, "the kernel computes the output"
    close(inputs[0].grad, inputs[1].grad)
    for one, other in zip(model.parameters(), original.parameters(), strict=True):
        close(one.grad, other.grad)


def test_second_gradients_are_those_of_the_original(model: Any, original: Any) -> None:
    found = []
    for made in (model, original):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(made(x).pow(3).sum(), x, create_graph=True)
        found.append(
            torch.autograd.grad(
                first.square().sum(),
                [x, made.get_parameter("0.fc.bias" if made is model else "fc.bias")],
            )
        )
    close(found[0], found[1])


def test_frozen_module_with_gradients_enabled_runs_the_kernel(model: Any) -> None:
    model.requires_grad_(False)
    assert not model(X).requires_grad
    assert ran(model) == 1


def test_training_mode_runs_the_original_and_updates_its_statistics(
    model: Any, original: Any
) -> None:
    for made in (model, original):
        made.train()
        made(X)
        made.eval()
    assert ran(model) == 0
    close(model[0].norm.running_mean, original.norm.running_mean)
    with torch.no_grad():
        close(model(X), original(X))
    assert ran(model) == 1


CHANGES: dict[str, Any] = {
    "attribute": lambda m: setattr(m, "eps", 7.0),
    "attribute of a submodule": lambda m: setattr(m.norm, "eps", 1.0),
    "item of an attribute": lambda m: m.options.update(shift=2.0),
    "private attribute": lambda m: setattr(m, "_bias", 2.0),
    "hook": lambda m: m.norm.register_forward_hook(lambda inner, args, out: out * 2),
    "backward hook": lambda m: m.fc.register_full_backward_hook(lambda *given: None),
    "shorter weight": lambda m: setattr(m.fc.bias, "data", m.fc.bias.data[:1]),
    "forward": lambda m: setattr(m.fc, "forward", lambda x: x * 3),
    "submodule": lambda m: setattr(m, "norm", nn.Tanh().eval()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_module_runs_the_users_code(name: str, model: Any, original: Any) -> None:
    with torch.no_grad():
        model(X)
        for module in (model[0], original):
            CHANGES[name](module)
        close(model(X), original(X))
        assert model[0].why_original(X) != ""
    assert ran(model) == 1


def test_hook_of_all_modules_runs_the_users_code(model: Any, original: Any) -> None:
    def hook(module: nn.Module, given: Any, out: Any) -> Any:
        return out * 2 if type(module) is nn.Linear else None

    with torch.no_grad():
        close(model(X), original(X))
        with nn.modules.module.register_module_forward_hook(hook):
            close(model(X), original(X))
            assert "hooks for all modules" in model[0].why_original(X)
        close(model(X), original(X))
    assert ran(model) == 2


def test_gradients_of_torch_func_are_those_of_the_original(model: Any, original: Any) -> None:
    def gradients(module: nn.Module) -> Any:
        def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(module, parameters, (X,)).square().sum()

        return torch.func.grad(loss)(dict(module.named_parameters()))

    close(gradients(model[0]), gradients(original))
    with torch.no_grad():
        close(model(X), original(X))
    assert ran(model) == 1


def test_traced_graph_has_the_operators_of_the_original(model: Any, original: Any) -> None:
    """A kernel writes memory, which a trace of torch's operators does not see."""
    with torch.no_grad():
        graph = make_fx(model)(X)
        close(graph(X + 1), original(X + 1))


def test_restore_keeps_a_parametrization(model: Any, package: ModuleType) -> None:
    class Twice(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value * 2

    block = model[0]
    block.register_parameter("extra", nn.Parameter(torch.ones(1)))
    nn.utils.parametrize.register_parametrization(block, "extra", Twice())
    package.restore_(model)
    assert block.extra == 2
    with torch.no_grad():
        assert block(X).shape == X.shape
    nn.utils.parametrize.remove_parametrizations(block, "extra")
    package.restore_(model)
    assert type(block).__module__ == "users"


STATES: dict[str, Any] = {
    "assigned state": lambda m, o: (
        m.load_state_dict(o.state_dict(), assign=True),
        setattr(m.head, "weight", m.fc.weight),
    ),
    "replaced weight": lambda m, o: setattr(m.fc, "bias", nn.Parameter(o.fc.bias.detach().clone())),
    "there and back": lambda m, o: m.double().float(),
    "moved memory": lambda m, o: setattr(m.fc.bias, "data", o.fc.bias.data.clone()),
    "in place": lambda m, o: m.fc.bias.data.add_(0),
}


@pytest.mark.parametrize("name", STATES)
def test_new_parameters_of_the_verified_form_run_the_kernel(
    name: str, model: Any, original: Any
) -> None:
    original.fc.bias.data.add_(1)
    with torch.no_grad():
        model(X)
        model[0].fc.bias.data.add_(1)
        STATES[name](model[0], original)
        close(model(X), original(X))
        assert model[0].why_original(X) == ""
    assert ran(model) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_module_of_another_dtype_is_the_users_until_it_is_cast_back(
    dtype: torch.dtype, model: Any, original: Any
) -> None:
    for module in (model, original):
        module.to(dtype)
    with torch.no_grad():
        found = model(X.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found, original(X.to(dtype)), rtol=0, atol=0)
        assert ran(model) == 0
        for module in (model, original):
            module.to(torch.float32)
        close(model(X), original(X))
    assert ran(model) == 1


def test_transposed_parameter_in_the_same_memory_runs_the_original(
    model: Any, original: Any
) -> None:
    with torch.no_grad():
        model(X)
        for module in (model[0], original):
            module.fc.weight.data = module.fc.weight.data.t()
        close(model(X), original(X))
    assert ran(model) == 1


def test_autocast_and_vmap_run_the_original(model: Any, original: Any) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(X).dtype == original(X).dtype
    with torch.no_grad():
        found = torch.func.vmap(lambda row: model(row.view(1, 8)).view(8))(X)
        close(found, original(X))
    assert ran(model) == 0


def test_copies_run_the_kernel_and_share_nothing(model: Any, original: Any) -> None:
    made = copy.deepcopy(model)
    assert made[0].fc.weight is made[0].head.weight is not model[0].fc.weight
    with torch.no_grad():
        close(made(X), original(X))
        assert (ran(made), ran(model)) == (1, 0)
        made[0].fc.bias.add_(1)
        assert not torch.equal(made(X), model(X))


def test_pickled_module_is_the_users(model: Any, original: Any) -> None:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for made in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert type(made[0]) is type(original)
        with torch.no_grad():
            close(made(X), original(X))


def test_state_dict_round_trip(model: Any, original: Any) -> None:
    assert model[0].state_dict().keys() == original.state_dict().keys()
    other = drawn(importlib.import_module("users").Block(8))
    other.load_state_dict(model[0].state_dict())
    model[0].load_state_dict(other.state_dict())
    with torch.no_grad():
        close(model(X), other(X))
    assert ran(model) == 1


def warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]


REFUSED = {
    "other source": ("edited", (8,), "the source of Block differs from the verified one"),
    "other constant": ("shifted", (8,), "the source of Block differs from the verified one"),
    "other width": ("users", (16,), "attribute sizes of the module differs"),
    "other eps": ("users", (8, 0.5), "attribute eps of the module differs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_module_unlike_the_verified_one_stays_as_it_is(
    name: str, package: ModuleType, parent: Path
) -> None:
    file, args, why = REFUSED[name]
    module = importlib.import_module(file).Block(*args)
    texts = warned(lambda: package.optimize_(module))
    assert type(module) is importlib.import_module(file).Block
    assert len(texts) == 1
    assert why in texts[0]


def test_model_without_the_class_is_reported(package: ModuleType) -> None:
    texts = warned(lambda: package.optimize_(nn.Linear(2, 2)))
    assert texts == ["Block: nothing was optimized: the model has no module of class Block"]


def test_named_class_is_optimized_though_its_source_differs(
    package: ModuleType, original: Any, parent: Path
) -> None:
    (parent / "copied.py").write_text(USERS.replace("class Block", "class Copied"))
    made = importlib.import_module("copied").Copied(8).eval()
    made.load_state_dict(original.state_dict())
    package.optimize_(made, original=type(made), gradients=True)
    with torch.no_grad():
        close(made(X), original(X))
    assert made.why_original(X) == ""


def test_reason_is_warned_once(model: Any) -> None:
    with torch.no_grad():
        texts = warned(lambda: [model(torch.randn(5, 8)) for _ in range(3)])
    assert len(texts) == 1
    assert "the original module runs, not the kernel: argument 0 is float32[5, 8]" in texts[0]


BROKEN = {
    "source that does not compile": (("kernels/tail.cpp", "this is no C++\n"), "does not compile"),
    "missing kernel file": (("kernels/other.cpp", TAIL), "no kernel source"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_kernel_that_cannot_be_loaded_leaves_the_original(
    name: str, parent: Path, original: Any
) -> None:
    file, why = BROKEN[name]
    package = f"broken_{len(name)}"
    written(parent / package, Attempt((file, ("model_new.py", KERNEL))))
    broken = importlib.import_module(f"{package}.model_new")
    module = copy.deepcopy(original)
    texts = warned(lambda: broken.optimize_(module))
    assert type(module) is type(original)
    assert len(texts) == 1
    assert why in texts[0]
    made = broken.ModelNew(8).eval()
    made.load_state_dict(original.state_dict())
    with torch.no_grad():
        texts = warned(lambda: close(made(X), original(X)))
    assert len(texts) == 1
    assert why in texts[0]


def test_torch_without_what_the_package_needs_leaves_the_original(
    parent: Path, original: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(parent / "elsewhere_fast")
    package = importlib.import_module("elsewhere_fast")
    module = copy.deepcopy(original)
    with monkeypatch.context() as patch:
        patch.delattr(torch.library, "register_fake")
        texts = warned(lambda: package.optimize_(module))
    assert type(module) is type(original)
    assert len(texts) == 1
    assert f"does not work with torch {torch.__version__} (AttributeError" in texts[0]


def test_torch_that_is_too_old_is_named(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(parent / "old_fast")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.5.1+cu124")
        with pytest.raises(ImportError, match=r"needs torch 2.6 or newer; found 2.5.1\+cu124"):
            importlib.import_module("old_fast")


@pytest.mark.parametrize("version", ["2.14.0a0+git1", "nightly"])
def test_torch_that_lacks_an_internal_of_the_package_is_named(
    parent: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    name = "newer_fast" + str(len(version))
    written(parent / name)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", version)
        patch.delattr(torch._C._functorch, "peek_interpreter_stack")
        with pytest.raises(ImportError, match=r"does not work with torch .* no attribute 'peek"):
            importlib.import_module(name)
    importlib.import_module(name)


def test_without_a_verified_backward_training_is_the_users(package: Any, original: Any) -> None:
    model = package.optimize_(nn.Sequential(copy.deepcopy(original)))
    assert "no backward of the kernel was verified" in model[0].why_original(X)
    model[0].__dict__[REPLACEMENT].package.warned.clear()
    (text,) = warned(lambda: [model(X).sum().backward() for _ in range(2)])
    assert text.endswith("gradients are wanted, and no backward of the kernel was verified")
    assert ran(model) == 0, "a kernel whose backward is the original's only adds its own time"
    with torch.no_grad():
        model(X)
    assert ran(model) == 1


def test_a_second_call_changes_what_runs_where_gradients_are_wanted(
    package: Any, original: Any
) -> None:
    model = package.optimize_(nn.Sequential(copy.deepcopy(original)))
    model(X).sum().backward()
    assert ran(model) == 0
    package.optimize_(model, gradients=True)
    model(X).sum().backward()
    assert ran(model) == 1
    package.restore_(model)
    assert type(model[0]) is type(original)
