"""Small kernels that follow one another are launched by one call on a CPU."""

from __future__ import annotations

import re

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.search.outcomes import Outcome
from cuagent.expert.search.planner import propose
from cuagent.task import load_task

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(9, 9))
        self.first, self.second = nn.Linear(9, 9), nn.Linear(9, 9)
    def forward(self, x, i):
{body}
def get_inputs(): return [torch.randn({rows}, 20, 9), torch.randint(0, 9, ({rows}, 20))]
def get_init_inputs(): return []
"""
VITERBI = """
a = x[:, 0] * 2
for t in range(1, 20):
    a = torch.logsumexp(a.unsqueeze(2) + self.matrix + x[:, t].unsqueeze(1), 1)
return a * 2
"""
SHIFTED = """
skip = F.pad(i[:, 2:9] != i[:, :7], (2, 0), value=True)
floor = torch.full_like(x[:, 0], -50.0)
a = x[:, 0]
for t in range(1, 6):
    one = F.pad(a[:, :-1], (1, 0), value=-50.0)
    two = torch.where(skip, F.pad(a[:, :-2], (2, 0), value=-50.0), floor)
    a = torch.logsumexp(torch.stack((a, one, two)), 0) + x[:, t]
return a
"""
KEPT = """
y = x.softmax(-1)
mask = y > 0.1
z = torch.where(mask, y, x).softmax(1)
v, k = z.max(-1)
return mask, z, k, (v.softmax(-1) + 1).sum(0)
"""
AROUND = """
y = (x * 2 + 1).softmax(-1)
z = self.first(x)
w = (z.relu() * 3).softmax(1)
return self.second((y.sum(1, keepdim=True) + w).softmax(-1))
"""
LIFETIMES = """
a = x.softmax(-1)
b = a.softmax(1)
c = b.cumsum(1)
d = (c * a).softmax(-1)
return d.softmax(1).cumsum(-1) + 1
"""
TWO = """
a = (x * 2 + 1).softmax(-1).softmax(1)
b = (self.first(a) * 2 + 1).softmax(-1).softmax(1)
c = (self.second(b) * 2 + 1).softmax(-1).softmax(1).cumsum(1)
return c, (self.first(c) * 2 + 1).softmax(-1).softmax(1), c.exp().sum()
"""
CASES = {
    "chains that begin alike": TWO,
    "loop of a CRF": VITERBI,
    "loop of CTC": SHIFTED,
    "results and masks": KEPT,
    "library calls between": AROUND,
    "lifetimes": LIFETIMES,
}


QUICK = ("loop of a CRF", "results and masks")
"""Names of the cases that are not slow tests."""


def text_of(name: str, rows: int = 4) -> str:
    body = "\n".join(f"        {line}" for line in CASES[name].strip().splitlines())
    return HEAD.format(body=body, rows=rows)


def launches(made) -> int:
    forward = made.candidate.files["model_new.py"].split("def forward")[-1]
    return len(re.findall(r"^        \w+_kernel\d*\(", forward, re.M))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_chain_agrees_with_the_reference(make, name):
    assert_agrees(make(text_of(name), "Model"))


def test_steps_of_a_loop_share_one_function_of_one_file(make):
    made = make(text_of("loop of a CRF"), "Model")
    (path,) = [p for p in made.candidate.files if p.endswith(".cpp")]
    text = made.candidate.files[path]
    assert launches(made) == 1
    assert text.count("static void") <= 4
    assert text.count("part_") > 19


def test_padding_and_fills_of_a_loop_join_its_kernels(make):
    text = make(text_of("loop of CTC"), "Model").candidate.files["model_new.py"]
    assert not re.search(r"aten\.(pad|full_like|stack|where|logsumexp)", text)


def test_library_call_does_not_part_kernels_that_it_does_not_read(make):
    made = make(text_of("library calls between"), "Model")
    assert launches(made) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "scratch"])
def test_argument_may_have_the_name_of_a_variable_of_the_chain(make, name):
    text = text_of("lifetimes").replace("(self, x, i):", f"(self, {name}, i):\n        x = {name}")
    made = make(text, "Model")
    assert any("reinterpret_cast<char*>(scratch)" in file for file in made.candidate.files.values())
    assert_agrees(made)


def test_chains_of_different_kernels_have_different_names(make):
    made = make(text_of("chains that begin alike"), "Model")
    chains = {name for name in made.candidate.kernels if "chain" in name}
    files = [path for path in made.candidate.files if "chain" in path]
    assert len(chains) == len(files) > 1


def test_large_kernels_are_launched_alone(make):
    made = make(text_of("lifetimes", rows=1000), "Model")
    assert not any("chain" in name for name in made.candidate.kernels)


def test_chains_can_be_left_out(make):
    made = make(text_of("lifetimes"), "Model", Options(chains=False))
    assert launches(made) > 2
    assert_agrees(made)


def test_refused_chain_is_tried_again_as_single_kernels(tmp_path):
    (tmp_path / "task.py").write_text(text_of("lifetimes"))
    subject = open_subject(load_task(tmp_path / "task.py", device="cpu"))
    first = make_candidate(subject, Options())
    assert first is not None
    assert first.has_chains
    proposal = propose(subject, [Outcome(first, False, "wrong values")])
    assert proposal is not None
    assert not proposal.candidate.has_chains
    assert len(proposal.candidate.kernels) > len(first.kernels)
