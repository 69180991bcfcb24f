"""Optimized modules in graphs of torch.compile and torch.export, in copies of a process, in DDP."""

from __future__ import annotations

import copy
import importlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blocks import ATTEMPT, DOMAIN, REPLACEMENT, TASK, X, close, cuda_package, ran
from torch import nn

from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files

pytestmark = pytest.mark.usefixtures("silent")


def compiled(model: nn.Module) -> Any:
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def test_whole_graph_runs_the_kernel(model: Any, original: Any) -> None:
    call = compiled(model)
    with torch.no_grad():
        close(call(X), original(X))
        assert ran(model) == 1
        model[0].fc.bias.add_(1)
        original.fc.bias.add_(1)
        close(call(X), original(X))
    assert ran(model) == 2


def test_whole_graph_has_the_gradients_of_the_original(
    model: Any,
    original: Any,
) -> None:
    call, inputs = compiled(model), [X.clone().requires_grad_() for _ in range(2)]
    for made, x in zip((call, original), inputs, strict=True):
        made(x).square().sum().backward()
    assert ran(model) == 1
    close(inputs[0].grad, inputs[1].grad)
    for one, other in zip(model.parameters(), original.parameters(), strict=True):
        close(one.grad, other.grad)


def test_whole_graph_of_another_shape_or_of_training_is_the_users(
    model: Any,
    original: Any,
) -> None:
    call = compiled(model)
    with torch.no_grad():
        close(call(torch.ones(6, 8)), original(torch.ones(6, 8)))
        model.train()
        original.train()
        close(call(X), original(X))
    assert ran(model) == 0
    close(model[0].norm.running_mean, original.norm.running_mean)


def test_module_that_changed_before_it_was_compiled_is_the_users(
    model: Any,
    original: Any,
) -> None:
    for module in (model[0], original):
        module.norm.eps = 1.0
    with torch.no_grad():
        close(compiled(model)(X), original(X))
    assert ran(model) == 0


def test_module_that_changed_after_it_was_compiled_is_not_run_silently(
    model: Any,
    original: Any,
) -> None:
    call = compiled(model)
    with torch.no_grad():
        call(X)
        for module in (model[0], original):
            module.sizes = [0]
            module.norm.eps = 1.0
        with pytest.raises(RuntimeError, match=r"changed after it was compiled.*compile the model"):
            call(X)
        close(compiled(model)(X), original(X))


def test_module_with_other_parameters_that_changed_is_not_run_silently(
    model: Any, original: Any
) -> None:
    """No call outside of the graph has noticed the new parameters."""
    call = compiled(model)
    with torch.no_grad():
        call(X)
        model[0].fc.bias = nn.Parameter(torch.ones(8))
        original.fc.bias = nn.Parameter(torch.ones(8))
        close(call(X), original(X))
        model[0].norm.eps = 1.0
        with pytest.raises(RuntimeError, match="changed after it was compiled"):
            call(X)


def test_exported_program_keeps_its_weights_when_the_module_gets_others(
    model: Any, original: Any
) -> None:
    with torch.no_grad():
        program = torch.export.export(model, (X,)).module()
        close(program(X), original(X))
        model[0].fc.bias = nn.Parameter(torch.ones(8))
        close(program(X), original(X))
        original.fc.bias = nn.Parameter(torch.ones(8))
        close(model(X), original(X))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_with_a_dynamic_size_is_the_users(
    strict: bool, model: Any, original: Any
) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(
            model, (X,), dynamic_shapes={"input": {0: rows}}, strict=strict
        )
        for x in (X, torch.randn(7, 8)):
            close(program.module()(x), original(x))
        fixed = torch.export.export(model, (X,), strict=strict)
    assert any("cuagent_" in str(node.target) for node in fixed.graph.nodes)


@pytest.mark.slow
def test_inductor_runs_the_kernel_with_gradients(model: Any, original: Any) -> None:
    torch.compiler.reset()
    call = torch.compile(model, fullgraph=True)
    x = X.clone().requires_grad_()
    call(x).sum().backward()
    original(X).sum().backward()
    assert ran(model) == 1
    for one, other in zip(model.parameters(), original.parameters(), strict=True):
        close(one.grad, other.grad)


def test_exported_program_keeps_the_kernel_as_one_operator(
    model: Any,
    original: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.no_grad():
        program = torch.export.export(model, (X,))
        called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
        assert sum(name.startswith("cuagent_") for name in called) == 1
        assert not any("aten" in name for name in called)
        close(program.module()(X), original(X))
        torch.export.save(program, tmp_path / "program.pt2")
        loaded = torch.export.load(tmp_path / "program.pt2").module()
        close(loaded(X), original(X))
        original.fc.bias.add_(1)
        loaded.get_parameter("0.fc.bias").add_(1)
        close(loaded(X), original(X))
        kernel, seen = type(model[0].__dict__[REPLACEMENT].kernel), []
        forward = kernel.forward

        def watched(self: Any, x: Any) -> Any:
            seen.append(torch.get_float32_matmul_precision())
            return forward(self, x)

        monkeypatch.setattr(kernel, "forward", watched)
        again = torch.export.load(tmp_path / "program.pt2").module()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            again(X)
            assert (seen, torch.get_float32_matmul_precision()) == ([before], "medium")
        finally:
            torch.set_float32_matmul_precision(before)


LAYOUTS = {
    "verified": lambda: torch.randn(4, 8),
    "permuted": lambda: torch.randn(8, 4).t(),
    "sliced": lambda: torch.randn(4, 16)[:, ::2],
    "padded": lambda: torch.randn(6, 10)[1:5, 1:9],
    "other shape": lambda: torch.randn(3, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gradients", [False, True])
def test_operator_passes_opcheck(layout: str, gradients: bool, model: Any) -> None:
    replacement = model[0].__dict__[REPLACEMENT]
    x = LAYOUTS[layout]().requires_grad_(gradients)
    state = [
        t.detach().clone().requires_grad_(gradients and t.requires_grad)
        for t in replacement.watch.tensors
    ]
    found = torch.library.opcheck(replacement.boundary.call, ([x], state))
    assert set(found.values()) == {"SUCCESS"}


def test_kernel_with_other_strides_than_the_original_gets_the_originals_in_a_graph(
    model: Any,
    original: Any,
) -> None:
    replacement = model[0].__dict__[REPLACEMENT]
    kernel = replacement.forward
    replacement.forward = lambda x: kernel(x).t().contiguous().t()
    with torch.no_grad():
        out = compiled(model)(X)
    assert out.stride() == original(X).stride() == (8, 1)
    close(out, original(X))


@pytest.mark.parametrize("memory", ["input", "part of an input", "parameter"])
def test_kernel_that_returns_memory_of_another_tensor_gets_a_copy_in_a_graph(
    memory: str, model: Any, original: Any
) -> None:
    replacement = model[0].__dict__[REPLACEMENT]
    weight = original.fc.weight
    state = next(n for n, t in enumerate(replacement.watch.tensors) if t.shape == weight.shape)
    forwards = {
        "input": lambda x: x,
        "part of an input": lambda x: x.as_strided((4, 8), (8, 1), 4),
        "parameter": lambda x: replacement.watch.tensors[state][:4],
    }
    replacement.forward = forwards[memory]
    tensors = [torch.randn(8, 8)[:4], *replacement.watch.tensors]
    with torch.no_grad():
        (out,) = replacement.boundary.call(tensors[:1], tensors[1:])
        torch.testing.assert_close(out, forwards[memory](tensors[0]), rtol=0, atol=0)
    found = out.untyped_storage().data_ptr()
    assert found not in [t.untyped_storage().data_ptr() for t in tensors]


def test_two_packages_of_one_kernel_live_in_one_process(
    parent: Path,
    package: ModuleType,
    original: Any,
) -> None:
    write_files(guarded_files(ATTEMPT, TASK, DOMAIN, "reference.py"), parent / "block_again")
    (parent / "block_again" / "__init__.py").write_text("from .model_new import optimize_\n")
    again = importlib.import_module("block_again")
    both = [made.optimize_(copy.deepcopy(original)) for made in (package, again)]
    operators = {str(m.__dict__[REPLACEMENT].boundary.call) for m in both}
    assert len(operators) == 2
    with torch.no_grad():
        for made in both:
            close(compiled(made)(X), original(X))


DDP = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, {parent!r})
import users, block_fast
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
grads = []
for fast in (False, True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(users.Block(8), torch.nn.Linear(8, 8)).eval()
    if fast:
        block_fast.optimize_(model, gradients=True)
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(rank + 5)
    for _ in range(2):
        wrapped(torch.randn(4, 8)).square().sum().backward()
    grads.append([p.grad.clone() for p in model.parameters()])
    if fast:
        assert model[0].__dict__["_cuagent_replacement"].kernel.ran == 2
for one, other in zip(*grads):
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
total = grads[1][0].clone()
dist.all_reduce(total)
torch.testing.assert_close(total, 2 * grads[1][0])
print("ok")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ddp_averages_the_gradients(
    parent: Path,
    tmp_path: Path,
    python: list[str],
) -> None:
    program = DDP.format(parent=str(parent))
    started = [
        subprocess.Popen(
            [*python, "-c", program, str(rank), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [out for out, _ in results] == ["ok\n", "ok\n"], results


@pytest.mark.gpu
def test_cuda_graph_captures_and_replays_the_kernel(tmp_path: Path) -> None:
    """The kernel launches on the stream that is captured, and the guard does not synchronize."""
    fast, users = cuda_package(tmp_path)
    module = users.Scale(64).cuda().eval()
    reference = copy.deepcopy(module)
    fast.optimize_(module)
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        assert module.why_original(x) == ""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            module(x)  # compiles and loads the kernel before the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module(x)
        for _ in range(3):
            x.normal_()
            graph.replay()
            torch.testing.assert_close(out, reference(x))
        found = torch.compile(module, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            torch.testing.assert_close(found(x).clone(), reference(x))
