"""Attention of large heads in float32: when two products and a softmax replace the fused call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shares import slow_after

from cuagent.expert.attention.rewrite import with_attention
from cuagent.expert.attention.unfused import with_expanded
from cuagent.expert.capture.editing import called
from cuagent.expert.capture.subject import Subject, Target, open_subject
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TASK = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, q, k, v, m):
        return {call}
def get_inputs():
    q, k, v = (torch.randn(2, 8, 512, {size}, dtype=torch.{dtype}) for _ in range(3))
    return [q, k, v, torch.randn(512, 512, dtype=torch.{dtype})]
def get_init_inputs(): return []
"""
LIBRARY = "nn.functional.scaled_dot_product_attention(q, k, v{})"
BY_HAND = "torch.softmax(q @ k.mT / 8, -1) @ v"


def subject(folder: Path, call: str, size: int = 1024, dtype: str = "float32") -> Subject:
    path = folder / "module.py"
    path.write_text(TASK.format(call=call, size=size, dtype=dtype))
    return open_subject(load_task(f"{path}:Model"))


@pytest.mark.parametrize(
    ("options", "size", "dtype", "target", "expands"),
    slow_after(
        4,
        [
            (", scale=0.1", 512, "float32", HOPPER, True),
            ("", 64, "float32", HOPPER, False),
            ("", 1024, "bfloat16", HOPPER, False),
            (", attn_mask=m", 1024, "float32", HOPPER, False),
            ("", 1024, "float32", HOPPER, True),
            ("", 1024, "float32", replace(HOPPER, capability=(8, 9)), False),
            ("", 1024, "float32", Target("cpu"), False),
            (", is_causal=True", 1024, "float32", HOPPER, False),
        ],
    ),
)
def test_products_replace_attention_of_large_heads_only(
    tmp_path: Path, options: str, size: int, dtype: str, target: Target, expands: bool
) -> None:
    captured = subject(tmp_path, LIBRARY.format(options), size, dtype).captured
    changed, names = with_expanded(captured, target)
    products = [node for node in changed.nodes if called(node) == "matmul"]
    assert (len(names), len(products)) == ((1, 2) if expands else (0, 0))


@pytest.mark.parametrize("call", [LIBRARY.format(""), BY_HAND])
def test_candidate_multiplies_large_heads_by_its_own_kernels(tmp_path: Path, call: str) -> None:
    from cuagent.expert.candidate import Options, make_candidate

    candidate = make_candidate(
        replace(subject(tmp_path, call), target=HOPPER), Options(own_attention=True)
    )
    assert candidate is not None
    assert len(candidate.kernels) == 3
    assert (
        "F.scaled_dot_product_attention(" not in candidate.files["model_new.py"].split("class")[2]
    )


CHANNELS = "torch.softmax(q.mT @ k * 0.2, -1) @ v.mT"
COPIED = "torch.softmax(q.mT.contiguous() @ k.mT.contiguous().mT * 0.2, -1) @ v.mT.contiguous()"


@pytest.mark.parametrize(
    ("call", "size", "target", "fused"),
    [
        (CHANNELS, 32, HOPPER, False),
        (CHANNELS, 32, Target("cpu"), True),
        (CHANNELS, 2048, HOPPER, True),
        (COPIED, 32, HOPPER, True),
    ],
)
def test_attention_over_channels_stays_products(
    tmp_path: Path, call: str, size: int, target: Target, fused: bool
) -> None:
    """Queries are channels, columns are places that are not adjacent in memory."""
    captured = subject(tmp_path, call, size, "bfloat16").captured
    _, names = with_attention(captured, target)
    assert bool(names) is fused
