"""Tensors without dimensions in the CPU's memory: numbers in the kernels of a module on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from torch._subclasses.fake_tensor import FakeTensorMode

from cuagent.expert.candidate import Options
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.capture.host_values import constant_scalars, device_of, number_of
from cuagent.expert.capture.subject import Subject, Target, open_subject
from cuagent.expert.plan import plan_method
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.limit, self.places = torch.tensor(0.5), torch.tensor([2, 0, 1])
        self.norm = nn.LayerNorm(8)
    def forward(self, x, s):
        {body}
def get_inputs(): return [torch.randn(5, 8), torch.tensor(3.0)]
def get_init_inputs(): return []
"""
NUMBERS = {
    "made in forward": "return (x / torch.sqrt(torch.tensor(64.0) * 3)).exp() + 1",
    "double": "return (x * torch.tensor(0.1, dtype=torch.float64)).exp() + 1",
    "integer": "return (x * torch.tensor(3)).exp() + 1",
    "attribute": "return (x * self.limit.log()).exp() + 1",
    "compared": "return torch.where(x > self.limit, x.exp(), x * 2)",
    "filled": "return (x.exp() + 1).masked_fill(x > 0, self.limit * 2)",
    "chosen": "return torch.where(x > 0, torch.tensor(2.0), x.exp() + 1)",
    "a limit": "return x.exp().clamp(max=self.limit * 4) + 1",
    "moved": "return (x / torch.tensor(4).to(s.device, x.dtype)).exp() + 1",
}
CALLS = {
    "not a number": "return (x * torch.tensor(float('nan'))).exp() + 1",
    "a mask": "return (torch.where(torch.tensor(True), x, x + 1) + 1).exp() * 2",
    "an input": "return (self.norm(x * s) + 1).exp()",
    "arithmetic on an input": "return (self.norm(x * (s * 2 + 1).sqrt()) + 1).exp()",
    "an index": "return (x[self.places] + 1).exp() * 2",
    "copied to the GPU": "return ((x[:3, 0] + self.places.to(x.device, x.dtype)) * 2).exp()",
}


def text_of(body: str) -> str:
    return TEXT.format(body=body)


def on_gpu(subject: Subject, device: str = "cuda:0", hosts: tuple[str, ...] = ("s",)) -> Subject:
    """Return the subject as if it was captured on a GPU: constants, inputs in `hosts` and what is
    computed from these alone are in the CPU's memory, and casts copy to the GPU's."""
    captured, mode = subject.captured, FakeTensorMode()
    edit = Edit(captured)
    for node in edit.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        host = node.op == "placeholder" and (node.name in captured.constants or node.name in hosts)
        sources = {device_of(source) for source in node.all_input_nodes}
        host |= node.op == "call_function" and (sources == {"cpu"} or not (sources or value.ndim))
        if called(node) == "_to_copy":
            node.kwargs = {**node.kwargs, "device": torch.device(device)}
            host = False
        with mode:
            node.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cpu" if host else device
            )
    target = Target("cuda", (9, 0), 132)
    return replace(subject, captured=edit.result(), target=target)


@pytest.fixture
def planned(tmp_path):
    """Return a function that plans a task text for a GPU, and returns (plan, names of values in
    the CPU's memory)."""

    def planned(text: str):
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = on_gpu(open_subject(load_task(f"{path}:Model", device="cpu")))
        plan = plan_method(subject, Options(), set())
        nodes = subject.captured.nodes
        assert any(device_of(fx) == "cuda" for fx in nodes)
        return plan, {fx.name.removeprefix("_") for fx in nodes if device_of(fx) == "cpu"}

    return planned


@pytest.mark.parametrize("name", NUMBERS)
def test_constant_scalar_is_a_number_in_the_kernel(planned, name):
    plan, hosts = planned(text_of(NUMBERS[name]))
    assert hosts
    (call,) = plan.calls.values()
    assert list(call.tensors_read) == ["x"]


@pytest.mark.parametrize("name", CALLS)
def test_kernels_read_and_write_no_memory_of_the_cpu(planned, name):
    plan, hosts = planned(text_of(CALLS[name]))
    assert plan.calls
    for position, call in plan.calls.items():
        read = {plan.graph.owner(tensor) for tensor in call.tensors_read}
        names = {plan.graph.node(n).origin or n for n in read} | read
        assert not names & hosts
        assert not set(plan.steps[position].outputs) & hosts


@pytest.mark.parametrize("name", [name for name in NUMBERS | CALLS if name != "not a number"])
def test_candidate_on_the_cpu_agrees_with_the_reference(make, name):
    assert_agrees(make(text_of((NUMBERS | CALLS)[name]), "Model"))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (torch.tensor(1 / 3), float(torch.tensor(1 / 3))),
        (torch.tensor(-7), -7),
        (torch.tensor((1 << 24) + 1), None),
        (torch.tensor(float("nan")), None),
        (torch.tensor(float("-inf")), float("-inf")),
        (torch.tensor(True), None),
        (torch.tensor(1j), None),
    ],
)
def test_numbers_have_the_values_of_tensors(value, number):
    assert number_of(value) == number


def test_outputs_and_random_values_are_no_constants(tmp_path):
    path = tmp_path / "task.py"
    body = "a = torch.tensor(2.0).sqrt(); return x * torch.rand(()) + torch.tensor(3.0).exp(), a"
    path.write_text(text_of(body))
    captured = open_subject(load_task(f"{path}:Model", device="cpu")).captured
    found = constant_scalars(captured)
    assert found["exp"] == torch.tensor(3.0).exp()
    assert not {"sqrt", "rand"} & found.keys()
