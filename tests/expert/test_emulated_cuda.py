"""CUDA kernels compute the right values when a CPU runs their text (`emulated.h`), in float32."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import test_depthwise as depthwise  # type: ignore[import-not-found]
import test_gathers as gathers  # type: ignore[import-not-found]
import test_layouts as layouts  # type: ignore[import-not-found]
import test_loops as loops  # type: ignore[import-not-found]
import test_pooling as pooling  # type: ignore[import-not-found]
import test_products as products  # type: ignore[import-not-found]
import test_recurrences as recurrences  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
import test_scans as scans  # type: ignore[import-not-found]
import torch
from agreement import Imported, assert_agrees  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.loops import cuda_layout
from cuagent.task import load_task

pytestmark = pytest.mark.slow

LAUNCH = re.compile(r"(\w+)<<<(.*), 0, stream>>>\((.*)\);")


def emulated(path: str) -> SimpleNamespace:
    """Load a `.cu` file relative to the caller, as a library for the CPU."""
    source = Path(sys._getframe(1).f_globals["__file__"]).parent / path
    text = LAUNCH.sub(_launch, source.read_text()).replace('#include "cluster_cuda.h"\n', "")
    cluster = re.search(r"__cluster_dims__\((\d+)", text)
    target, library = source.with_suffix(".cpp"), source.with_suffix(".so")
    target.write_text(f'#include "{Path(__file__).parent / "emulated.h"}"\n{text}')
    options = ["-O1", "-w", "-std=c++17", "-fPIC", "-shared"]
    options += [f"-DCLUSTER_SIZE={cluster[1]}"] if cluster else []
    command = ["g++", *options, "-o", str(library), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(library))[source.stem]

    def call(*tensors: torch.Tensor) -> None:
        function(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(0))

    return SimpleNamespace(**{source.stem: call})


def _launch(match: re.Match[str]) -> str:
    name, shape, arguments = match.groups()
    depth = 0
    for k, character in enumerate(shape):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            return f"launch({shape[:k]}, {shape[k + 1 :]}, [=] {{ {name}({arguments}); }});"
    raise AssertionError(f"no block size in {shape}")


NORM = "all but the second, and their norm"
TASKS = {
    "rows of a scan": scans.text_of("a masked sum", 2, "3, 7, 1031"),
    "short rows of a reversed scan": scans.text_of("a reversed sum", 2, "3, 7, 65"),
    "columns of a scan": scans.text_of("a sum inside arithmetic", 1, "3, 300, 5"),
    "max pool": pooling.text_of("max between elementwise operations"),
    "mean pool": pooling.text_of("mean inside with ceil mode"),
    "adaptive mean": pooling.text_of("adaptive mean"),
    **{f"channels-last: {n}": layouts.text_of(n) for n in ("kept sums", "group norm", "max pool")},
    "bilinear": pooling.text_of("bilinear between corners"),
    **{f"depthwise: {name}": depthwise.text_of(name) for name in depthwise.EMULATED},
    **{name: products.form_of(name) for name in products.VECTORS},
    "lookup and norm": gathers.text_of("embedding and position"),
    "joined lookups": gathers.text_of("joined embeddings"),
    "norm over several dimensions": reductions.text_of(reductions.BODIES[NORM], "9, 70, 3, 64"),
    "split columns": reductions.text_of("return (x * y).sum(0) + 1, x.amax(0)", "20000, 8"),
    "split rows": reductions.text_of("return (x * y).mean((0, 2)) + 1", "3, 2, 40000"),
    "few centred columns": reductions.text_of("return x - y.mean(0, keepdim=True)", "3000, 5"),
    "few centred rows": reductions.text_of("return x - y.mean(1, keepdim=True)", "65, 65539"),
    "extremes": reductions.text_of("v, i = (x * 2).max(1); return v + 1, i", "9, 70, 65"),
}


LOOPS = {
    "selective scan": loops.selective(2, 7, 35, 16),
    "selective scan of odd sizes": loops.selective(1, 9, 5, 7),
    "selective scan with many lanes": loops.selective(1, 6, 3, 40),
    **{name: loops.text_of(*loops.LOOPS[name]) for name in loops.LOOPS},
}


@pytest.mark.parametrize("options", [Options(), Options(threads=128, vector=False)])
@pytest.mark.parametrize("name", TASKS)
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name, options):
    check(tmp_path, monkeypatch, TASKS[name], options)


@pytest.mark.parametrize("name", LOOPS)
def test_emulated_loop_agrees_with_reference(tmp_path, monkeypatch, name):
    check(tmp_path, monkeypatch, LOOPS[name], Options())


@pytest.mark.parametrize("width", [1, 2])
def test_emulated_threads_of_a_channel_share_its_lanes(tmp_path, monkeypatch, width):
    monkeypatch.setattr(cuda_layout, "BUSY_THREADS", 70 * width)
    candidate = check(tmp_path, monkeypatch, loops.selective(2, 7, 35, 16), Options())
    (text,) = (text for path, text in candidate.files.items() if path.endswith("_kernel.cu"))
    assert f"WIDTH = {width}, ITEMS = {16 // width}" in text


SMALL = Target("cuda")
RECURRENCES = {
    **{name: recurrences.LOOPS[name] for name in ("gru", "rnn with relu, without biases")},
    **{
        name: recurrences.LAYERS[name]
        for name in ("lstm, both directions, given states", "many rows")
    },
    "wide gru": ("self.r = nn.GRU(6, 150)", "return self.r(x)[0]", "torch.randn(5, 9, 6)"),
}


@pytest.mark.parametrize("name", RECURRENCES)
def test_emulated_recurrence_agrees_with_reference(tmp_path, monkeypatch, name):
    text = recurrences.text_of(*RECURRENCES[name])
    target = Target("cuda", (9, 0), 132)
    candidate = check(tmp_path, monkeypatch, text, Options(products=False), target)
    assert candidate.has_recurrences


def check(tmp_path, monkeypatch, text, options, target=SMALL):
    """Compare the emulated candidate of a task with its reference, and return it."""
    path = tmp_path / "task.py"
    path.write_text(text)
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    subject = replace(subject, target=target)
    candidate = make_candidate(subject, options)
    assert candidate is not None
    for file, content in candidate.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.setattr(kernels, "load", emulated)
    module, task = imported(tmp_path / "model_new.py"), imported(path)
    assert_agrees(Imported(candidate, module.ModelNew, task.Model, task.get_inputs))
    return candidate
