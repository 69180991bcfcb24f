"""CUDA sources compile with nvcc, without a GPU; with one, they compute what the reference does."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from conftest import agrees  # type: ignore[import-not-found]
from modules import (  # type: ignore[import-not-found]
    INPUTS,
    Attention,
    CrossEntropy,
    GroupNormSilu,
    LogSoftmaxChannels,
    LongMean,
    Mlp,
    task_text,
)

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.subject import open_subject
from cuagent.task import load_task

TELLING = [Mlp, Attention, GroupNormSilu, LogSoftmaxChannels, LongMean, CrossEntropy]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_every_schedule_compiles(tmp_path):
    sources = []
    for cls in TELLING:
        path = tmp_path / f"{cls.__name__}.py"
        path.write_text(task_text(cls))
        subject = open_subject(load_task(f"{path}:{cls.__name__}", device="cpu"))
        candidate = make_candidate(replace(subject, device="cuda"), Options())
        assert candidate is not None
        for name, text in candidate.files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            target = tmp_path / name.replace("kernels/", f"kernels/{cls.__name__}_")
            (target if name.endswith(".cu") else tmp_path / name).write_text(text)
            sources += [target] if name.endswith(".cu") else []
    together = tmp_path / "kernels" / "together.cu"
    together.write_text("".join(f'#include "{source.name}"\n' for source in sources))
    command = ["nvcc", "-std=c++17", "-arch=sm_80", "-ptx", "-o", "/dev/null", str(together)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # Kernels of different tasks may share a name; nothing else may be wrong.
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.gpu
@pytest.mark.parametrize("cls", INPUTS, ids=lambda cls: cls.__name__)
def test_on_the_device(make, cls):
    agrees(make(task_text(cls), cls.__name__, device="cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["1, 1", "1, 7", "7, 1", "3, 8", "5, 4099", "2, 70000"])
@pytest.mark.parametrize("body", ["torch.softmax(x * 2 + 1, -1)", "(x * x).sum(0) + 1"])
@pytest.mark.parametrize("options", [Options(), Options(threads=128), Options(vector=False)])
def test_odd_sizes_on_the_device(make, shape, body, options):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
    agrees(make(text, "Model", options, "cuda"), "cuda")
