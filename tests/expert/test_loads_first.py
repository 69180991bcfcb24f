"""Rows of a thread are loaded before they are used, and joint values replace them (`cuda_rows`)."""

from __future__ import annotations

import re

import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming.cuda_rows import MAX_JOINT

HOPPER = Target("cuda", (9, 0), 132)
NORM = "h = x + y; return torch.nn.functional.layer_norm(h, h.shape[-1:]), h"
CASES = {
    "residual and norm": (NORM, "5, 1024", "float32"),
    "residual and norm of a part of the last vectors": (NORM, "5, 808", "bfloat16"),
    "residual and norm of a block": (NORM, "3, 4096", "bfloat16"),
    "softmax of a sum": ("return torch.softmax(x * 2 + y, -1)", "5, 1024", "float32"),
    "elements that later passes read too": (
        "h = x - y; return x + h / h.sum(-1, keepdim=True)", "5, 512", "float32"
    ),
    "products": ("return (x * y).sum(-1)", "5, 1000", "bfloat16"),
}  # fmt: skip
JOINT = {
    "residual and norm": "add_cached",
    "residual and norm of a part of the last vectors": "add_cached",
    "residual and norm of a block": "add_cached",
    "softmax of a sum": "add_cached",
}


def source_of(candidate) -> str:
    (text,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_emulated_rows_agree_with_reference(tmp_path, monkeypatch, name):
    text = reductions.text_of(*CASES[name])
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)


@pytest.mark.slow
def test_joint_values_keep_nan_and_infinities(tmp_path, monkeypatch):
    text = reductions.text_of(*CASES["softmax of a sum"])
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    monkeypatch.setattr(kernels, "load", emulated)
    x, y = imported(tmp_path / "task.py").get_inputs()
    x[0, 9], x[1, 511], x[2, 0], x[3, :] = torch.nan, torch.inf, -torch.inf, 3e38
    with torch.no_grad():
        got = imported(tmp_path / "model_new.py").ModelNew().eval()(x, y)
    torch.testing.assert_close(got, torch.softmax(x * 2 + y, -1), equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_all_loads_precede_the_first_use(generate, name):
    body = source_of(generate(reductions.text_of(*CASES[name]), HOPPER)).split('extern "C"')[0]
    loads = [
        m.start() for m in re.finditer(r"load_vector\((?:reinterpret_cast<[^(]*\()?[xy] ", body)
    ]
    assert len(loads) == 2
    assert not re.search(r"_v = |::join|store_vector", body[: max(loads)])


@pytest.mark.parametrize("name", CASES)
def test_joint_values_are_saved_where_no_later_pass_reads_their_operands(generate, name):
    text = source_of(generate(reductions.text_of(*CASES[name]), HOPPER))
    saved = re.findall(r"float (\w+_cached)\[ITEMS\]\[VECTOR\];", text)
    assert (JOINT.get(name) in saved) == (name in JOINT)


def test_threads_keep_few_joint_values(generate):
    """Wide rows get more threads rather than more registers."""
    for columns in (512, 1024, 2048, 4096):
        text = source_of(generate(reductions.text_of(NORM, f"8, {columns}"), HOPPER))
        items, vector = (
            int(re.search(rf"{word} = (\d+);", text)[1])  # type: ignore[index]
            for word in ("ITEMS", "VECTOR")
        )
        assert 3 * items * vector <= MAX_JOINT


def test_large_blocks_do_not_load_first(generate):
    """A thread of 1024 has few registers."""
    text = reductions.text_of("return torch.softmax(x, -1)", "8, 16384")
    assert "first_0" not in source_of(generate(text, Target("cuda", (8, 0), 108)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_rows_agree_with_reference_on_cuda(make, name):
    assert_agrees(make(reductions.text_of(*CASES[name]), "Model", device="cuda"), "cuda")
