"""Results of the library's attention in any memory order, as its backends on a GPU return them."""

from __future__ import annotations

from dataclasses import replace

import captured_graphs  # type: ignore[import-not-found]
import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.attention.heads import with_heads_inside
from cuagent.expert.attention.operators import attention
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.output_layouts import correct_outputs
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.graph.lowering import shape_of
from cuagent.task import load_task
from cuagent.task.reference import open_reference

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.o = nn.Linear(32, 32)
    def forward(self, q, k, v, m):
        y = F.scaled_dot_product_attention(q, k, v, {mask})
        {body}
def get_inputs():
    q, k, v = (torch.randn(2, 9, 4, 8).transpose(1, 2){copy} for _ in range(3))
    return [q, k, v, torch.randn(1, 4, 9, 9)]
def get_init_inputs(): return []
"""
BODIES = {
    "joined heads": "return self.o(y.transpose(1, 2).reshape(2, 9, 32)).relu() * 2",
    "copied": "return (y.transpose(1, 2).contiguous().view(2, 9, 32) + 1).exp()",
    "sums": "return (y * y + 1).sum((1, 2)) * 2",
    "a row": "return torch.softmax(y * 2, -1).flatten(1).contiguous().exp() + 1",
}
ORDERS = {"heads inside": (0, 2, 1, 3), "contiguous": (0, 1, 2, 3), "samples inside": (2, 1, 0, 3)}
COPIES = {"views": "", "contiguous": ".contiguous()"}
OTHERS = {"masked": "m", "scaled": "None, scale=0.0", "causal": "None, 0.0, True"}


def text_of(body: str, copy: str = "", mask: str = "m") -> str:
    return TEXT.format(body=BODIES.get(body, body), copy=copy, mask=mask)


@pytest.fixture
def order_of_attention(monkeypatch):
    """Return a function that gives torch's attention a memory order of its result."""
    call = F.scaled_dot_product_attention

    def order_of_attention(order):
        back = tuple(order.index(d) for d in range(4))
        monkeypatch.setattr(
            F,
            "scaled_dot_product_attention",
            lambda *args, **options: (
                call(*args, **options).permute(order).contiguous().permute(back)
            ),
        )

    return order_of_attention


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("body", BODIES)
def test_kernels_read_a_result_in_any_order(make, order_of_attention, body, copy, order):
    made = make(text_of(body, COPIES[copy]), "Model")
    order_of_attention(ORDERS[order])
    assert_agrees(made)


@pytest.mark.parametrize("mask", OTHERS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("body", ["joined heads", "copied"])
def test_call_on_a_gpu_is_written_with_the_heads_inside(tmp_path, body, copy, mask):
    path = tmp_path / "task.py"
    path.write_text(text_of(body, COPIES[copy], OTHERS[mask]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda", (9, 0), 132)), Options())
    forward = made.files["model_new.py"].rpartition("def forward")[2]
    assert ".transpose(1, 2).contiguous()" in forward
    assert ("scale=0.0" in forward, "is_causal=True" in forward) == (
        mask == "scaled",
        mask == "causal",
    )
    assert "permute" not in forward.partition(".transpose(1, 2).contiguous()")[2]


@pytest.mark.parametrize("order", ORDERS)
def test_outputs_have_the_layout_of_a_real_call(tmp_path, order_of_attention, order):
    path = tmp_path / "task.py"
    path.write_text(text_of("return y.transpose(1, 2) + 1"))
    task = load_task(f"{path}:Model", device="cpu")
    captured = open_subject(task).captured
    order_of_attention(ORDERS[order])
    reference = open_reference(task)
    model, inputs = reference.model(0), reference.inputs(0)
    correct_outputs(captured, model, inputs)
    with torch.no_grad():
        expected = model(*inputs)
    assert captured.outputs[0].meta["val"].stride() == expected.stride()


@pytest.mark.parametrize("own", [False, True])
def test_output_is_contiguous_where_trace_and_gpu_have_the_heads_inside(
    tmp_path, order_of_attention, own
):
    # As on a GPU whose fused kernel returns the heads inside, also in the trace.
    path = tmp_path / "task.py"
    path.write_text(text_of("return y.transpose(1, 2) + 1", mask="None, 0.0, True"))
    task = load_task(f"{path}:Model", device="cpu")
    subject = open_subject(task)
    for fx in subject.captured.nodes:
        value = fx.meta.get("val")
        if "transpose" in str(fx.target) or "add" in str(fx.target):
            fx.meta["val"] = value.new_empty(value.shape)
        elif "scaled_dot_product_attention" in str(fx.target):
            fx.meta["val"] = value.new_empty((2, 9, 4, 8)).transpose(1, 2)
    order_of_attention(ORDERS["heads inside"])
    reference = open_reference(task)
    correct_outputs(subject.captured, reference.model(0), reference.inputs(0))
    options = Options(own_attention=own)
    made = make_candidate(replace(subject, target=Target("cuda", (9, 0), 132)), options)
    forward = made.files["model_new.py"].rpartition("def forward")[2]
    *_, last, result = forward.strip().split("return ")[-2:]
    stored = f"{result} = torch.empty_strided((2, 9, 4, 8), (288, 32, 8, 1)" in forward
    assert stored or (f"{result} = torch.ops.aten.add.Tensor" in last and ").contiguous()" in last)


PLACES = "p = torch.arange(9); d = (p - p[:, None]).abs() < 5; "
MASKS = {
    "a bias of each head": (
        PLACES + "m = torch.where(d[None, None].expand(2, 1, 9, 9), b, -5.0)",
        1,
    ),
    "expanded": (PLACES + "m = d.expand(2, 1, 9, 9)", 1),
    "converted and filled": (
        PLACES + "e = d.expand(2, 4, 9, 9); m = e.to(b.dtype).masked_fill(~e, -4.0) * 0.5 + b",
        1,
    ),
    "of one sample": (PLACES + "m = d[None, None]", 1),
    "of the samples": ("m = (q[:, :, :, :1] > 0).expand(2, 4, 9, 9)", 2),
    "a bias of the samples": (
        PLACES + "m = torch.where(d.expand(2, 1, 9, 9), b + q[:, :, :, :1], -5.0)",
        2,
    ),
    "repeated": (PLACES + "m = d[None, None].repeat(2, 1, 1, 1)", 2),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_is_computed_for_one_sample_if_all_are_equal(tmp_path, name):
    before, samples = MASKS[name]
    path = tmp_path / "task.py"
    text = text_of("joined heads").replace("q, k, v, m):", f"q, k, v, b):\n        {before}")
    path.write_text(text)
    task = load_task(f"{path}:Model", device="cpu")
    captured = with_heads_inside(open_subject(task).captured)
    (call,) = [fx for fx in captured.nodes if fx.target is attention]
    assert shape_of(call.args[3])[0] == samples
    reference = open_reference(task)
    captured_graphs.assert_equal_results(captured, reference.model(0), reference.inputs(0))
