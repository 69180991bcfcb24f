"""Attention written as products and a softmax: which forms are found, and equality."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.attention.rewrite import with_attention
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.export import capture
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

pytestmark = pytest.mark.slow

CPU = Target("cpu")
HEADS = "torch.randn(2, 4, 9, 8), torch.randn(2, 4, 13, 8), torch.randn(2, 4, 13, 8)"
SQUARE = "torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)"
GROUPS = "torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)"
FORMS = {
    "matmul": ("q, k, v", "torch.softmax(q @ k.transpose(-2, -1) / 8 ** 0.5, -1) @ v", HEADS),
    "scaled operands": ("q, k, v", "((q * 0.5) @ k.mT).softmax(3) @ v", HEADS),
    "bmm": (
        "q, k, v",
        "torch.bmm(F.dropout(torch.bmm(q, k.transpose(1, 2)).softmax(-1), 0.1, self.training), v)",
        "torch.randn(3, 9, 8), torch.randn(3, 13, 8), torch.randn(3, 13, 8)",
    ),
    "one matrix": (
        "q, k, v",
        "torch.softmax(q @ k.T, dim=1) @ v",
        "torch.randn(9, 8), torch.randn(13, 8), torch.randn(13, 8)",
    ),
    "baddbmm": (
        "b, q, k, v",
        "torch.baddbmm(b, q, k.transpose(1, 2), alpha=0.3).softmax(-1) @ v",
        "torch.randn(3, 9, 13), torch.randn(3, 9, 8), torch.randn(3, 13, 8), torch.randn(3, 13, 8)",
    ),
    "einsum": (
        "q, k, v",
        "torch.einsum('bhij,bhjd->bihd', "
        "(torch.einsum('bhid,bhjd->bhij', q, k) * 0.3).softmax(-1), v)",
        HEADS,
    ),
    "einsum, heads inside, operands exchanged": (
        "q, k, v",
        "torch.einsum('bkhd,bhqk->bqhd', v, "
        "torch.einsum('bkhd,bqhd->bhqk', k, q).softmax(-1)).relu()",
        "torch.randn(2, 9, 4, 8), torch.randn(2, 13, 4, 8), torch.randn(2, 13, 4, 8)",
    ),
    "masks of windows": (
        "q, k, v, m",
        "((q @ k.mT).view(2, 3, 4, 9, 13) + m[None, :, None]).view(6, 4, 9, 13).softmax(-1) @ v",
        "torch.randn(6, 4, 9, 8), torch.randn(6, 4, 13, 8), torch.randn(6, 4, 13, 8), "
        "torch.randn(3, 9, 13)",
    ),
    "two masks of windows, behind a bias": (
        "q, k, v, b",
        "(((q @ k.mT) + b).view(-1, 3, 4, 9, 13) + b[:1] + b).view(-1, 4, 9, 13).softmax(-1) @ v",
        "torch.randn(6, 4, 9, 8), torch.randn(6, 4, 13, 8), torch.randn(6, 4, 13, 8), "
        "torch.randn(4, 9, 13)",
    ),
    "causal constant": (
        "q, k, v",
        "((q @ k.mT) * 0.3 + torch.triu(torch.full((9, 9), float('-inf')), 1)).softmax(-1) @ v",
        SQUARE,
    ),
    "causal fill of a finite number": (
        "q, k, v",
        "(q @ k.mT).masked_fill(~torch.ones(9, 9).tril().bool(), -1e9).softmax(-1) @ v",
        SQUARE,
    ),
    "sliding window": (
        "q, k, v",
        "torch.where(torch.ones(9, 9).tril().triu(-2) == 1, q @ k.mT, float('-inf')).softmax(-1)"
        " @ v",
        SQUARE,
    ),
    "bias and mask": (
        "q, k, v, b, m",
        "(((q @ k.mT) + b).masked_fill(m < 0, float('-inf')) * 0.5).softmax(-1) @ v",
        HEADS + ", torch.randn(4, 9, 13), torch.randn(2, 1, 1, 13)",
    ),
    "a factor for each head": (
        "q, k, v, s",
        "((q @ k.mT) * s.exp()).softmax(-1) @ v",
        HEADS + ", torch.randn(4, 1, 1)",
    ),
    "repeated heads": (
        "q, k, v",
        "(q @ k.repeat_interleave(2, 1).mT).softmax(-1) @ v.repeat_interleave(2, dim=1)",
        GROUPS,
    ),
    "expanded heads": (
        "q, k, v",
        "(q @ k[:, :, None].expand(2, 2, 2, 9, 8).reshape(2, 4, 9, 8).mT).softmax(-1)"
        " @ v[:, :, None].expand(2, 2, 2, 9, 8).reshape(2, 4, 9, 8)",
        GROUPS,
    ),
    "the library's attention of repeated heads": (
        "q, k, v",
        "F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1),"
        " is_causal=True).transpose(1, 2).flatten(2)",
        GROUPS,
    ),
    "heads joined, three dimensions": (
        "q, k, v",
        "torch.bmm(torch.bmm(q, k.mT).softmax(-1), v).transpose(0, 1).reshape(9, 24).relu()",
        "torch.randn(3, 9, 8), torch.randn(3, 13, 8), torch.randn(3, 13, 8)",
    ),
    "heads joined": (
        "q, k, v",
        "((q @ k.mT).softmax(-1) @ v).transpose(1, 2).contiguous().view(2, 9, 32).relu()",
        HEADS,
    ),
    "heads joined, and read in both orders": (
        "q, k, v",
        "(lambda y: (y.view(8, 9, 8), y.transpose(1, 2).reshape(2, 9, 32)))"
        "((q @ k.mT).softmax(-1) @ v)",
        HEADS,
    ),
}
OTHERS = {
    "softmax over queries": ("q, k, v", "(q @ k.mT).softmax(-2) @ v", HEADS),
    "weights are a result": ("q, k, v", "(lambda p: (p @ v, p))((q @ k.mT).softmax(-1))", HEADS),
    "softcap": ("q, k, v", "(torch.tanh(q @ k.mT / 5) * 5).softmax(-1) @ v", HEADS),
    "values of another size": (
        "q, k, v",
        "(q @ k.mT).softmax(-1) @ v[..., :4]",
        HEADS,
    ),
    "a fill that leaves weight": (
        "q, k, v, m",
        "(q @ k.mT).masked_fill(m < 0, -10.0).softmax(-1) @ v",
        HEADS + ", torch.randn(9, 13)",
    ),
    "a negative factor behind a mask": (
        "q, k, v, m",
        "((q @ k.mT).masked_fill(m < 0, float('-inf')) * -1).softmax(-1) @ v",
        HEADS + ", torch.randn(9, 13)",
    ),
    "a factor for each score": (
        "q, k, v, m",
        "((q @ k.mT) * m).softmax(-1) @ v",
        HEADS + ", torch.randn(9, 13)",
    ),
    "batches that broadcast": (
        "q, k, v",
        "(q @ k[:1].mT).softmax(-1) @ v",
        HEADS,
    ),
}


def text_of(form: tuple[str, str, str], dtype: str = "torch.float32") -> str:
    arguments, body, inputs = form
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, {arguments}):
        return {body}
def get_inputs(): return [t.to({dtype}) for t in ({inputs},)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("name", FORMS)
def test_form_becomes_one_equal_call(make, name):
    made = make(text_of(FORMS[name]), "Model")
    text = made.candidate.files["model_new.py"]
    forward = text[text.rindex("def forward") :]
    assert forward.count("F.scaled_dot_product_attention") == 1
    assert "softmax" not in forward
    assert "matmul" not in forward
    assert made.candidate.library
    assert_agrees(made)


@pytest.mark.parametrize("name", ["matmul", "sliding window", "bias and mask", "expanded heads"])
def test_half_precision_form_becomes_one_equal_call(make, name):
    assert_agrees(make(text_of(FORMS[name], "torch.bfloat16"), "Model"))


def test_softmax_in_float32_between_half_precision_products_is_found(make):
    body = "(q @ k.mT).float().softmax(-1).to(q.dtype) @ v"
    made = make(text_of(("q, k, v", body, HEADS), "torch.bfloat16"), "Model")
    assert made.candidate.library
    assert_agrees(made)


@pytest.mark.parametrize("name", OTHERS)
def test_other_form_keeps_its_softmax(tmp_path, name):
    path = tmp_path / "task.py"
    path.write_text(text_of(OTHERS[name]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    _, found = with_attention(subject.captured, CPU)
    assert found == ()


@pytest.mark.parametrize("name", ["causal constant", "causal fill of a finite number"])
def test_causal_mask_of_constants_needs_no_tensor(make, name):
    made = make(text_of(FORMS[name]), "Model")
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "is_causal=True" in forward
    assert "attn_mask" not in forward


@pytest.mark.parametrize("name", ["repeated heads", "expanded heads"])
def test_repeated_heads_are_read_in_place_where_the_library_can(tmp_path, name):
    path = tmp_path / "task.py"
    path.write_text(text_of(FORMS[name]))
    captured = open_subject(load_task(f"{path}:Model", device="cpu")).captured

    def grouped(target: Target) -> bool:
        graph, _ = with_attention(captured, target)
        return any(node.kwargs.get("enable_gqa") for node in graph.nodes)

    assert grouped(CPU)
    assert not grouped(Target("cuda", (9, 0)))  # float32 has no such backend


@pytest.mark.parametrize("fill", ["float('-inf')", "-1e9"])
def test_queries_without_keys_get_the_reference_s_values(make, fill):
    body = f"(q @ k.mT).masked_fill(m > 0, {fill}).softmax(-1) @ v"
    made = make(text_of(("q, k, v, m", body, HEADS + ", torch.randn(2, 1, 9, 13)")), "Model")
    q, k, v, m = made.inputs()
    m[0, 0, 2] = 1.0
    m[1, 0, 5] = -1.0
    new, reference = made.cls(), made.reference()
    with torch.no_grad():
        torch.testing.assert_close(new(q, k, v, m), reference(q, k, v, m), equal_nan=True)
        assert bool(torch.isnan(new(q, k, v, m)).any()) == ("inf" in fill)


@pytest.mark.parametrize("bias", ["16 * b.sigmoid()", "(b > 0) * -100.0"])
def test_bias_that_cannot_be_infinite_leaves_no_query_without_keys(make, bias):
    body = f"((q @ k.mT) + {bias}).softmax(-1) @ v"
    made = make(text_of(("q, k, v, b", body, f"{HEADS}, torch.randn(4, 9, 13)")), "Model")
    text = made.candidate.files["model_new.py"]
    assert "masked_fill" not in text[text.rindex("def forward") :]
    assert_agrees(made)


def test_option_leaves_attention_as_it_is_written(make):
    made = make(text_of(FORMS["bias and mask"]), "Model", Options(attention=False))
    assert "scaled_dot_product" not in made.candidate.files["model_new.py"]


def test_multihead_attention_that_needs_no_weights_is_found(make):
    text = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
    def forward(self, x):
        return self.norm(x + self.attention(x, x, x)[0])
def get_inputs(): return [torch.randn(2, 9, 32)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    assert made.candidate.library == ("softmax",)
    assert_agrees(made)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_attention_of_transformers_is_found(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1,
        "intermediate_size": 48, "vocab_size": 50, "attn_implementation": "eager",
    }  # fmt: skip
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    else:
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, use_cache=False)
        model = transformers.LlamaModel(config)

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids).last_hidden_state

    captured = capture(Hidden().eval(), [torch.randint(50, (2, 9))])
    _, found = with_attention(captured, CPU)
    assert len(found) == 1


def test_no_candidate_without_attention_or_kernels(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(text_of(("q, k", "q @ k.mT", "torch.randn(2, 3, 9), torch.randn(2, 3, 9)")))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    assert make_candidate(subject, Options()) is None


def test_multi_head_attention_of_torch_needs_no_copy_behind_the_attention(make):
    text = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 4)
    def forward(self, x):
        return self.attention(x, x, x)[0].relu()
def get_inputs(): return [torch.randn(9, 2, 32)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert ".transpose(1, 2).contiguous()" in forward
    assert forward.count("aten.clone") <= 1, "only the projections are copied"
    assert_agrees(made)


@pytest.mark.parametrize(
    "body",
    [
        "self.attention(x, x, x)[0] + self.shift",
        "self.attention(*[x.exp().sqrt()] * 3)[0]",
        "self.layer(x) * 2",
    ],
)
def test_result_has_the_layout_of_the_fast_path(make, body):
    text = f"""
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
        self.shift = nn.Parameter(torch.randn(32))
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn(3, 9, 32)]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))
