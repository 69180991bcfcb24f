"""Small kernels that do not depend on each other, in one launch on a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert import bundles
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.d = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.e = nn.Conv2d(6, 6, 1, bias=False)
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn(2, 6, 9, 12), torch.randn(3, 5, 7)]
def get_init_inputs(): return []
"""
POOLS = "F.max_pool2d(x, 3, 1, 1), F.avg_pool1d(y, 2), torch.softmax(y, -1), (y + 1).sin() * 2"
LIBRARY = """u, v = F.max_pool2d(x, 3, 1, 1), F.avg_pool2d(x, 2, 1)
        a, b = self.c(u), self.d(F.pad(v, (0, 1, 0, 1)))
        return a.relu() * 2, F.max_pool2d(b, 2), (a.sigmoid().amax(1), F.avg_pool2d(a, 3, 1))"""
FORMS = {
    "kernels of different families": (f"return {POOLS}", [3]),
    "kernels before and behind calls": (LIBRARY, [2, 2]),
    "the same kernel on two inputs": (
        "z = x.sin() + 1\n        z = self.c(z)\n"
        "        return F.max_pool2d(z, 2), F.max_pool2d(x, 2), F.max_pool2d(self.d(x), 2)",
        [3],
    ),
}
ALONE = {
    "kernels that depend on each other": "return F.max_pool2d(F.max_pool2d(x.sin(), 2), 2)",
    "kernels that depend on each other through a call": (
        "return F.max_pool2d(self.c(F.max_pool2d(x, 3, 1, 1)), 2)"
    ),
}


def made(path, body: str, **options):
    (path / "task.py").write_text(TEXT.format(body=body))
    subject = open_subject(load_task(f"{path / 'task.py'}:Model", device="cpu"))
    subject = replace(subject, target=Target("cuda"))
    return make_candidate(subject, Options(convolutions="library", **options))


def counts(candidate) -> list[int]:
    """Return the number of kernels of each bundle, in the order of its source."""
    text = "".join(text for path, text in candidate.files.items() if path.endswith(".cu"))
    found = re.findall(
        r"__global__ [^\n]*_bundle_kernel\d*_device\([^\n]*\n((?:  (?:else|if) [^\n]*\n)+)", text
    )
    return [branches.count("\n") for branches in found]


@pytest.mark.parametrize("name", FORMS)
def test_independent_kernels_have_one_launch(tmp_path, name):
    body, expected = FORMS[name]
    candidate = made(tmp_path, body)
    assert sorted(counts(candidate)) == expected
    single = made(tmp_path, body, chains=False)
    assert not counts(single)
    assert single.launches == candidate.launches + sum(expected) - len(expected)
    assert candidate.has_chains


@pytest.mark.parametrize("name", ALONE)
def test_dependent_kernels_stay(tmp_path, name):
    assert not counts(made(tmp_path, ALONE[name]))


def test_large_kernels_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_BYTES", 1000)
    assert not counts(made(tmp_path, LIBRARY))


def test_result_that_two_kernels_read_is_not_overwritten(tmp_path):
    body = "a = self.e(x)\n        return a.relu() * 2"
    assert "# in place" in made(tmp_path, body).files["model_new.py"]
    candidate = made(tmp_path, f"{body}, F.max_pool2d(a, 3, 1, 1)")
    assert counts(candidate) == [2]
    assert "# in place" not in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_emulated_bundle_agrees_with_reference(tmp_path, monkeypatch, name):
    text = TEXT.format(body=FORMS[name][0])
    candidate = emulated.check(tmp_path, monkeypatch, text, Options(convolutions="library"))
    assert counts(candidate)
