"""Slices, permutations, concatenations, rolls and padding inside generated kernels."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

BODIES = {
    "halves of one projection": "a, b = x.chunk(2, -1); return F.silu(a) * b",
    "slices of different widths": "a, b = x.split([10, 30], -1); return a.exp() * 2, b.tanh() + 1",
    "a later part as the result": "return (x * 2).tanh().chunk(2, -1)[1]",
    "one number": "return x.flatten().tanh().max(-1)[0]",
    "unbound rows as results": "return (x * 2).tanh().unbind(1)[1:3]",
    "a step": "return x[:, 1::2].relu() * 3",
    "one index": "return x[:, 3].tanh() * x[:, -1]",
    "unbound rows": "a, b, *_ = x.unbind(1); return a * b + a",
    "rotated halves": (
        "h = x.shape[-1] // 2\n"
        "        r = torch.cat((-x[..., h:], x[..., :h]), -1)\n"
        "        return x * y + r * (y + 1)"
    ),
    "parts that are computed": "return torch.cat([x.exp(), x * 2, y], 1).tanh() + 1",
    "parts of a sum": "return torch.cat([x.sum(1, keepdim=True), y], 1) * 2 + 1",
    "stacked tensors": "return torch.stack([x, y * 2], 2).tanh() * 3",
    "a transposed operand": (
        "return (x.transpose(1, 2).contiguous() + y.transpose(1, 2) * 2).exp()[..., :2] + 1"
    ),
    "a broadcast operand": "return (y[:, :1].expand(-1, x.shape[1], -1) * x).tanh()",
    "a row sum of a slice": "return (x[..., 3:] * 2).sum(-1) + 1",
    "softmax of a permutation": "return torch.softmax(x.permute(1, 0, 2).contiguous() * 2, -1)",
    "padding": "return F.pad(x * 2, (1, 2, 3, 0), value=0.5).tanh() + 1",
    "padding of one dimension": "return F.pad(x, (0, 1)).exp() * 2",
    "shuffled pixels": "return F.pixel_shuffle(x.view(3, 12, 4, 5) * 2, 2).sigmoid()",
    "pixels taken apart": "return F.pixel_unshuffle(x, 2).tanh() * 2",
    "a detached permutation": (
        "return (x.transpose(1, 2).detach() + y.transpose(1, 2)).exp().sum(-1) * 2"
    ),
    "a roll": "return torch.roll(x, 3, 1).exp() * 2",
    "a roll of two dimensions": "return torch.roll(x, (2, -3), (1, 2)).tanh() + x",
    "a reversed dimension": "return x.flip(-1).exp() * y + x.flip(0, 1)",
    "overlapping windows": "return (x.unfold(-1, 8, 4) * 2).tanh().sum(-1) + 1",
    "diagonals": "return x.diagonal(1, 1, 2).exp() * 2 + y.diagonal(-1, 1, 2)[:, :1]",
    "repeated blocks": "return x.repeat(2, 1, 2).tanh() * 2",
    "repeated elements": "return x.repeat_interleave(3, 1).tanh() * 2",
    "padding and cutting off": "return F.pad(x * 2, (0, 0, 1, -1)).tanh() + x",
    "cutting off": "return F.pad(x, (-1, -2)).exp() * 2",
    "reflection": "return F.pad(x, (3, 2), mode='reflect').exp() * 2",
    "reflection of two dimensions": "return F.pad(x, (3, 2, 1, 4), mode='reflect').exp() * 2",
    "reflection of a computed value": (
        "return F.pad((x * y).tanh(), (3, 2, 0, 1), mode='reflect') * 2 + 1"
    ),
    "repeated borders": "return F.pad(x * 2, (3, 2, 1, 0), mode='replicate').tanh() + 1",
    "wrapped borders": "return F.pad(x, (5, 2, 2, 3), mode='circular').tanh() + 1",
    "reflection of a concatenation": (
        "return F.pad(torch.cat((x, y), 1), (1, 1, 2, 2), mode='reflect').tanh() + 1"
    ),
    "a row sum over a reflection": "return F.pad(x, (7, 7), mode='reflect').exp().sum(-1) + 1",
    "interleaved rotation": (
        "a, b = x[..., 0::2], x[..., 1::2]\n"
        "        c, s = y[:, :1, 0::2], y[:, :1, 1::2]\n"
        "        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2) * 2"
    ),
    "padding in a concatenation": (
        "return torch.cat([F.pad(x, (0, 2)), F.pad(y, (2, 0))], 1) * 2 + 1"
    ),
    "shuffled channels": (
        "n, c, w = x.shape\n"
        "        return x.view(n, 2, c // 2, w).transpose(1, 2).reshape(n, c, w).tanh() + x"
    ),
}


def text_of(body: str) -> str:
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn(3, 6, 40), torch.randn(3, 6, 40)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    assert_agrees(make(text_of(BODIES[name]), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(vector=False)])
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name, options):
    assert_agrees(make(text_of(BODIES[name]), "Model", options, "cuda"), "cuda")


def test_rotary_embedding_is_one_kernel_without_copies(make):
    made = make(text_of(BODIES["rotated halves"]), "Model")
    assert len(made.candidate.kernels) == 1
    module = made.candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    assert "torch.cat" not in forward
    assert forward.count("torch.empty") == 1


def test_shift_by_padding_and_cutting_off_is_part_of_a_kernel(make):
    made = make(text_of(BODIES["padding and cutting off"]), "Model")
    assert_agrees(made)
    assert len(made.candidate.kernels) == 1
    assert "aten.pad" not in made.candidate.files["model_new.py"]


def test_window_at_a_divisor_has_a_condition_outside_the_inner_loop(make):
    made = make(text_of(BODIES["rotated halves"]), "Model")
    text = next(t for n, t in made.candidate.files.items() if n.endswith(".cpp"))
    inner = text[text.index("#pragma omp simd") :]
    assert "for (long i2 = 0; i2 < 20;" in inner
    assert "i2 <" not in inner.replace("for (long i2 = 0; i2 < 20;", "")


def test_output_keeps_the_layout_that_torch_gives_it(make):
    made = make(text_of("return (x * 2).exp() + y, (x.transpose(1, 2) * 2).exp()"), "Model")
    assert_agrees(made)


ENCODED = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(15, 12)
        self.second = torch.nn.Linear(27, 4)
    def forward(self, x):
        e = torch.cat([x, torch.sin(x * 3), torch.cos(x * 3)], -1)
        return self.second(torch.cat([e, F.relu(self.first(e))], -1))
def get_inputs(): return [torch.randn(9, 5)]
def get_init_inputs(): return []
"""


def test_expensive_part_that_a_product_reads_is_computed_once(make):
    made = make(ENCODED, "Model")
    texts = "".join(text for path, text in made.candidate.files.items() if path.endswith(".cpp"))
    assert texts.count("= sine(") == 1
    assert len(made.candidate.kernels) >= 1
    assert_agrees(made)
