"""Loops of generated C++ that gcc must vectorize, and the values of such kernels."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.kernels.toolchain import CPU_FLAGS

pytestmark = pytest.mark.slow

BODIES = {
    "a mask before a maximum": (
        "return (x / 8).masked_fill(m, -1e9).softmax(-1)",
        "torch.randn(6, 40, 128), torch.rand(40, 128) > 0.5",
    ),
    "a mask as a factor": (
        "return (x * m).sum(-1) / m.float().sum(-1)",
        "torch.randn(40, 128), torch.rand(40, 128) > 0.1",
    ),
    "sines beside their angles": (
        "return torch.cat([x, x.sin(), (x * 2).cos()], -1) + m",
        "torch.randn(40, 36), torch.randn(108)",
    ),
    "a comparison as a number": (
        "return ((m - (x < 0).float()).abs() * x).sum(1)",
        "torch.randn(40, 8, 32), torch.rand(32)",
    ),
    "two comparisons as a number": (
        "return ((x >= m) & ~(x > m + 1)).to(x.dtype) * 3 - 1",
        "torch.randn(40, 128), torch.randn(128)",
    ),
    "sines of unequal parts": (
        "return torch.cat([x[:, :3], x[:, 3:].sin(), (x * 2).cos()], -1) * 3 + m",
        "torch.randn(40, 21), torch.randn(42)",
    ),
    "a mask of the type of another": (
        "return (x.exp() > m).type_as(x) * x + 1",
        "torch.randn(40, 128), torch.rand(128)",
    ),
    "a mask as a result": (
        "return x > m, x * 2 + 1",
        "torch.randn(40, 128), torch.rand(40, 128) > 0.5",
    ),
    "a long row": (
        "d = x - x.mean(-1, keepdim=True); return d * (d * d).mean(-1, keepdim=True).rsqrt() + m",
        "torch.randn(40, 512), torch.randn(512)",
    ),
    "extremes of a long row": (
        "return x.amax(-1) - (x * m).amin(-1)",
        "torch.randn(40, 512), torch.randn(512)",
    ),
    "the root of a short row": (
        "return (x[:, None] - m[None]).pow(2).sum(-1).sqrt()",
        "torch.randn(70, 32), torch.randn(70, 32)",
    ),
    "quotients of short rows": (
        "return (x * m).sum(-1) / x.norm(dim=-1).clamp_min(1e-8)",
        "torch.randn(3, 70, 24), torch.randn(24)",
    ),
    "GELU, its approximation and Mish": (
        "return F.gelu(x) + m, F.gelu(x, approximate='tanh'), F.mish(x)",
        "torch.randn(40, 128) * 4, torch.randn(128)",
    ),
}


def _made(make, name):
    body, inputs = BODIES[name]
    lines = "\n        ".join(part.strip() for part in body.split(";"))
    text = f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, m):
        {lines}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
"""
    return make(text, "Model")


@pytest.mark.parametrize("name", BODIES)
def test_gcc_vectorizes_every_simd_loop(make, name, tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    for path, text in _made(make, name).candidate.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for source in tmp_path.glob("kernels/*.cpp"):
        command = [compiler, *CPU_FLAGS, "-fopt-info-vec-optimized", source.name, "-o", "k.so"]
        done = subprocess.run(
            command, cwd=source.parent, capture_output=True, text=True, timeout=600, check=True
        )
        report = rf"{source.name}:(\d+):\d+: optimized: loop vectorized"
        vectorized = {int(found[1]) for found in re.finditer(report, done.stderr)}
        lines = source.read_text().splitlines()
        for k, line in enumerate(lines, start=1):
            if "omp simd" in line:
                depth = len(lines[k]) - len(lines[k].lstrip())
                after = range(k + 1, len(lines) + 1)
                end = next(n for n in after if lines[n - 1] == " " * depth + "}")
                assert vectorized & set(range(k, end + 1)), "\n".join(lines[k - 1 : end])


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    made = _made(make, name)
    assert made.candidate.kernels
    assert_agrees(made)
