"""Calls of the library's attention with a constant causal mask become causal calls without it."""

from __future__ import annotations

from dataclasses import replace

import captured_graphs  # type: ignore[import-not-found]
import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.attention.masks import is_causal_mask
from cuagent.expert.attention.rewrite import with_attention
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task
from cuagent.task.reference import open_reference

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def forward(self, q, k, v):
        n = q.shape[2]
        {before}
        k, v = (t[:, :, None].expand(2, 2, 2, 9, 8).reshape(2, 4, 9, 8) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, {mask})
        return y.transpose(1, 2).reshape(2, 9, 32) * 2
def get_inputs():
    return [torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)]
def get_init_inputs(): return []
"""
PLACES = "p = torch.arange(n); "
CAUSAL = {
    "boolean": ("m = torch.ones(n, n).bool().tril()", "m"),
    "for each sample": (PLACES + "m = (p[None] <= p[:, None]).expand(2, 1, n, n)", "m"),
    "named, scaled": ("m = torch.ones(n, n).bool().tril()[None]", "attn_mask=m, scale=0.25"),
    "added": ("m = torch.full((n, n), float('-inf')).triu(1)", "m"),
    "added, finite": ("m = torch.full((n, n), -3e38).triu(1)[None, None]", "m"),
}
ALL = {
    "boolean": (PLACES + "m = (p >= 0).expand(n, n)", "m"),
    "of the queries": (PLACES + "m = (p >= 0)[None, None, :, None].expand(1, 1, n, n)", "m"),
    "added, named": ("m = torch.zeros(n, n)", "attn_mask=m, scale=0.25"),
}
OTHERS = {
    "all keys but one": (PLACES + "m = ((p > 0) | (p[:, None] < 9 - 1))", "m"),
    "a bias of all keys": ("m = torch.zeros(n, n) + torch.eye(n)", "m"),
    "a window": (PLACES + "d = p[:, None] - p; m = (d >= 0) & (d < 4)", "m"),
    "the next key": ("m = torch.ones(n, n).bool().tril(1)", "m"),
    "a weak bias": ("m = torch.full((n, n), -5.0).triu(1)", "m"),
    "a bias below the diagonal": (
        "m = torch.full((n, n), float('-inf')).triu(1) + torch.ones(n, n).tril(-1)",
        "m",
    ),
    "another head": (
        "m = torch.ones(4, n, n).bool().tril() & (torch.arange(4) < 3).view(4, 1, 1) | "
        "torch.eye(n).bool()",
        "m",
    ),
    "of an input": ("m = q.new_ones(n, n).bool().tril() & (q[0, 0, 0, 0] < 9)", "m"),
}


def text_of(form: tuple[str, str]) -> str:
    return TEXT.format(before=form[0], mask=form[1])


def forward_of(candidate) -> str:
    return candidate.files["model_new.py"].rpartition("def forward")[2]


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_mask_is_left_out(make, name):
    made = make(text_of(CAUSAL[name]), "Model")
    forward = forward_of(made.candidate)
    assert "is_causal=True" in forward
    assert "attn_mask" not in forward
    assert ("scale=0.25" in forward) is (name == "named, scaled")
    assert_agrees(made)


@pytest.mark.parametrize("name", ALL)
def test_mask_of_all_keys_is_left_out(make, name):
    made = make(text_of(ALL[name]), "Model")
    forward = forward_of(made.candidate)
    assert "attn_mask" not in forward
    assert "is_causal" not in forward
    assert ("scale=0.25" in forward) is (name == "added, named")
    assert_agrees(made)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(make, name):
    made = make(text_of(OTHERS[name]), "Model")
    assert "is_causal" not in forward_of(made.candidate)
    assert_agrees(made)


@pytest.mark.parametrize(
    ("mask", "copied"),
    [
        ("(q[:, :1, :, :1] > -9).expand(2, 1, 9, 9)", True),  # of the queries
        ("q[:, :1, :, :1] > -9", True),
        ("(q[:, :1, None, :, 0] > -9).expand(2, 1, 9, 9)", False),  # of the keys
    ],
)
def test_mask_on_a_gpu_has_adjacent_keys(tmp_path, mask, copied):
    path = tmp_path / "task.py"
    path.write_text(text_of((f"m = {mask}", "m")))
    task = load_task(f"{path}:Model", device="cpu")
    subject = open_subject(task)
    gpu = Target("cuda", (9, 0), 132)
    captured, _ = with_attention(subject.captured, gpu)
    calls = [fx for fx in captured.nodes if "attention" in str(fx.target)]
    strides = [fx.args[3].meta["val"].stride() for fx in calls]
    assert [place[-1] for place in strides] == [1]
    clones = [fx for fx in captured.nodes if "clone" in str(fx.target)]
    before = [fx for fx in subject.captured.nodes if "clone" in str(fx.target)]
    assert len(clones) - len(before) == copied
    reference = open_reference(task)
    captured_graphs.assert_equal_results(captured, reference.model(0), reference.inputs(0))


def test_call_without_mask_on_a_gpu_repeats_no_heads(tmp_path):
    path = tmp_path / "task.py"
    text = text_of(CAUSAL["boolean"])
    path.write_text(text.replace("9, 8)", "9, 8).half()").replace("9, 8).half() for", "9, 8) for"))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda", (9, 0), 132)), Options())
    forward = forward_of(made)
    assert "is_causal=True" in forward
    assert "enable_gqa=True" in forward


@pytest.mark.parametrize(
    ("mask", "sizes", "causal"),
    [
        (torch.ones(4, 4).bool().tril(), (4, 4), True),
        (torch.ones(1, 1).bool(), (4, 4), False),  # broadcast: every query sees every key
        (torch.ones(3, 4).bool().tril(), (3, 4), False),
        (torch.ones(4).bool(), (4, 4), False),
        (torch.full((2, 1, 4, 4), float("-inf")).triu(1), (4, 4), True),
        (torch.full((4, 4), float("nan")).triu(1), (4, 4), False),
        (torch.full((4, 4), float("-inf")), (4, 4), False),
    ],
)
def test_masks_are_causal_only_with_the_whole_triangle(mask, sizes, causal):
    assert is_causal_mask(mask, *sizes) is causal
