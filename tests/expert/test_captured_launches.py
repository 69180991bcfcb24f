"""Candidates that replay their launches as a CUDA graph."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import LAYER_TASK  # type: ignore[import-not-found]
from shares import slow_except

from cuagent.expert.candidate import Options

NETWORK = (
    "nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), "
    "nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU(), "
    "nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), "
    "nn.Linear(32, 10))"
)
TASKS = {
    "network": LAYER_TASK.format(layer=NETWORK, body="self.c(x)", shape="2, 3, 32, 32"),
    "norms": LAYER_TASK.format(
        layer="nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 32))",
        body="torch.softmax(self.c(x), -1) + x",
        shape="64, 32",
    ),
    "two_results": LAYER_TASK.format(
        layer="nn.LayerNorm(32)", body="(self.c(x) * 2, x.sum(1))", shape="64, 32"
    ),
    "no_parameters": LAYER_TASK.format(layer="nn.GELU()", body="self.c(x) * x", shape="64, 32"),
}
GRAPHS = [Options(graph=True), Options(graph=True, compile="default")]


@pytest.mark.parametrize("options", GRAPHS, ids=["launches", "compiled"])
@pytest.mark.parametrize("name", slow_except(TASKS, "network", "two_results"))
def test_module_replays_a_function_of_its_arguments_and_prepared_values(generate, name, options):
    text = generate(TASKS[name], options=options).files["model_new.py"]
    compile(text, "model_new.py", "exec")
    function = "_forward" if options.compile else "ModelNew._compute"
    values = ', self._prepare, "_prepared_values"' if "def _prepare(self)" in text else ""
    assert f"return replay(self, {function}, (x,){values})" in text
    assert text.index("if not self._fits(x):") < text.index("return replay(")
    (imported,) = (line for line in text.splitlines() if line.startswith("from cuagent."))
    assert "replay" in imported.partition("from cuagent.kernels import ")[2].split(", ")


def test_graph_is_an_option_of_cuda_only(make):
    candidates = [make(TASKS["norms"], "Model", Options(graph=g)).candidate for g in (False, True)]
    assert candidates[0].files == candidates[1].files


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["norms", "two_results", "no_parameters"])
def test_module_computes_the_same_where_no_graph_can_be_captured(generate, interpreted, name):
    interpreted(generate(TASKS[name], options=Options(graph=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("options", GRAPHS, ids=["launches", "compiled"])
@pytest.mark.parametrize("name", TASKS)
def test_replays_agree_for_new_inputs_weights_and_copies(make, name, options):
    made = make(TASKS[name], "Model", options, "cuda")
    new = assert_agrees(made, "cuda", least=1e-3)
    reference = made.reference().eval().cuda()
    reference.load_state_dict(new.state_dict())

    def assert_equal(module: torch.nn.Module, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        (x,) = (t.cuda() for t in made.inputs())
        kept = x.clone()
        got, expected = (m(x) for m in (module, reference))
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)
        assert torch.equal(x, kept)
        return [got, expected]

    with torch.no_grad():
        results = [assert_equal(new, seed) for seed in range(5)]
        for got, expected in results:
            torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)
        for module in (new, reference):
            for parameter in module.parameters():
                parameter.mul_(1.5)
        for seed in range(4):
            assert_equal(new, seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            assert_equal(new, 9)
        torch.cuda.synchronize()
        twin = copy.deepcopy(new)
        for seed in range(4):
            assert_equal(twin, seed)
    held = new.__dict__["_cuda_graphs_of_replay"]
    assert all(not isinstance(g, str) for g in held.calls._graphs.values()), held.calls._graphs


@pytest.mark.gpu
def test_gradients_and_training_use_the_reference(make):
    made = make(TASKS["norms"], "Model", Options(graph=True), "cuda")
    new = made.cls().eval().cuda()
    (x,) = (t.cuda().requires_grad_() for t in made.inputs())
    new(x).sum().backward()
    assert x.grad is not None
