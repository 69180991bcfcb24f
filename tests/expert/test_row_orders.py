"""Linear layers of permuted rows, and copies before an attention: which views remain."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from shares import slow_except

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.row_orders import with_row_orders
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.up = nn.LayerNorm(32), nn.Linear(32, 48)
    def forward(self, x):
        {body}
def get_inputs(): return [torch.randn(3, 10, 32)]
def get_init_inputs(): return []
"""
CHANGED = {
    "multi-head attention": "h = self.norm(x); "
    "return self.norm(x + self.attention(h, h, h, need_weights=False)[0])",
    "rows of two layers": "h = F.gelu(self.up(x.transpose(0, 1)).transpose(0, 1).contiguous()); "
    "return x + F.linear(h.transpose(0, 1), self.up.weight.T).transpose(0, 1)",
    "joined rows": "h = self.up(x.transpose(0, 1).reshape(30, 32)).view(10, 3, 48); "
    "return torch.softmax(h.transpose(0, 1).contiguous(), -1)",
    "split rows": "h = self.up(x.view(3, 2, 5, 32).permute(1, 0, 2, 3).reshape(30, 32)); "
    "return h.view(2, 3, 5, 48).transpose(0, 1).reshape(3, 10, 48) * 2 + 1",
    "copied operands": "q = self.up(x).view(3, 10, 6, 8).transpose(1, 2).contiguous(); "
    "y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(3, 10, 48); "
    "return self.norm(F.linear(y, self.up.weight.T) + x)",
}
UNCHANGED = {
    "returned": "return self.up(x.transpose(0, 1))",
    "rows in order": "return self.up(x.reshape(30, 32)).relu()",
    "attention returned": "q = self.up(x).view(3, 10, 6, 8).transpose(1, 2).contiguous(); "
    "return F.scaled_dot_product_attention(q, q, q)",
    "rows of moved features": "return self.norm(x) + self.up(x.permute(1, 2, 0)"
    ".reshape(-1, 32)).sum()",
    "samples joined with heads": "q = self.up(x).view(3, 10, 6, 8).transpose(1, 2).contiguous()"
    ".view(1, 18, 10, 8); return F.scaled_dot_product_attention(q, q, q).sum(1)",
    "steps": "h = self.up(x.transpose(0, 1)); return h[0].tanh() + h[1]",
    "joined results": "h = self.up(x.transpose(0, 1)); return torch.cat((h, h), 1) * 2",
}


def captured_of(folder, body: str):
    """Return the captured graph of a task, the module and its inputs."""
    path = folder / "task.py"
    path.write_text(TEXT.format(body=body))
    return open_subject(load_task(f"{path}:Model", device="cpu"))


def run(captured, model, *inputs):
    """Compute a captured graph."""
    graph = captured.nodes[0].graph
    graph.eliminate_dead_code()
    values = dict(zip(captured.inputs, inputs, strict=True))
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    named = {name: state[path] for name, path in captured.parameters.items()}
    places = [node.name for node in graph.find_nodes(op="placeholder")]
    module = torch.fx.GraphModule({}, graph)
    return module(*((values | named)[name] for name in places))


@pytest.mark.parametrize(
    "name", slow_except(CHANGED, "multi-head attention", "joined rows", "split rows")
)
def test_changed_graph_computes_the_same(tmp_path, name):
    subject = captured_of(tmp_path, CHANGED[name])
    changed = with_row_orders(subject.captured)
    assert changed is not subject.captured
    space: dict = {}
    exec(TEXT.format(body=CHANGED[name]), space)
    model, inputs = space["Model"]().eval(), space["get_inputs"]()
    with torch.no_grad():
        (made,), expected = run(changed, model, *inputs), model(*inputs)
    torch.testing.assert_close(made, expected)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize("name", slow_except(UNCHANGED, "returned", "attention returned", "steps"))
def test_other_graphs_do_not_change(tmp_path, name):
    captured = captured_of(tmp_path, UNCHANGED[name]).captured
    assert with_row_orders(captured) is captured


@pytest.mark.parametrize("name", ["multi-head attention", "copied operands"])
def test_attention_needs_no_copy(tmp_path, name):
    subject = replace(captured_of(tmp_path, CHANGED[name]), target=HOPPER)
    made = make_candidate(subject, Options())
    assert made is not None
    forward = made.files["model_new.py"].rpartition("def forward")[2]
    assert "clone" not in forward
    views = forward.count(".permute(0, 2, 1, 3)") + forward.count(".transpose(1, 2)")
    assert views + forward.count(".as_strided(") == 4
