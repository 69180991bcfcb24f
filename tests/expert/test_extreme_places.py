"""An extreme and its place are found in one pass over a row (`streaming.extreme_places`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
from agreement import Imported  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.streaming import cuda_kept
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)


def made(tmp_path, monkeypatch, text, options=None) -> Imported:
    """Return the emulated candidate of a task."""
    path = tmp_path / "task.py"
    path.write_text(text)
    subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=HOPPER)
    candidate = make_candidate(subject, options or Options())
    assert candidate is not None
    for file, content in candidate.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.setattr(kernels, "load", emulated)
    module, task = imported(tmp_path / "model_new.py"), imported(path)
    return Imported(candidate, module.ModelNew, task.Model, task.get_inputs)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("body", [reductions.EXTREMES, reductions.INDICES])
def test_first_of_equal_values_and_nan_win_in_the_emulation(tmp_path, monkeypatch, body, dim):
    reductions.assert_equal(made(tmp_path, monkeypatch, reductions.extremes_text(body, dim)))


INFINITE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.argmax(1), x.argmin(1), x.max(1)[0] + 1
def get_inputs():
    x = torch.full((3, 100, 5), -float("inf"))
    x[1] = float("inf")
    x[2, 70:] = float("nan")
    return [x]
def get_init_inputs(): return []
"""


@pytest.mark.slow
def test_rows_of_equal_infinities_have_the_first_place(tmp_path, monkeypatch):
    reductions.assert_equal(made(tmp_path, monkeypatch, INFINITE))


SPLIT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return BODY
def get_inputs(): return [torch.randn(SHAPE).round()]
def get_init_inputs(): return []
"""
PARTS = {"rows": ("x.argmax(-1), x.amin(-1)", "2, 70001"), "columns": ("x.argmin(0)", "9001, 5")}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_row_have_one_place(tmp_path, monkeypatch, name):
    body, shape = PARTS[name]
    text = SPLIT.replace("BODY", f"({body},)").replace("SHAPE", shape)
    candidate = made(tmp_path, monkeypatch, text)
    assert any("_join<<<" in t for f, t in candidate.candidate.files.items() if f[-3:] == ".cu")
    reductions.assert_equal(candidate)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["5, 1031", "3, 2048"])
def test_places_of_rows_in_shared_memory(tmp_path, monkeypatch, shape):
    monkeypatch.setattr(cuda_kept, "LEAST_COLUMNS", 0)
    monkeypatch.setattr(cuda_kept, "CLUSTERS", (4,))
    monkeypatch.setattr(cuda_kept, "BLOCK_THREADS", (64,))
    body = "p = torch.softmax(x.round(), -1); return p, p.argmax(-1), x.round().argmin(-1)"
    text = reductions.text_of(body, shape)
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)


def test_a_row_is_read_once(generate):
    for dim in (1, 2):
        text = reductions.text_of(f"return x.argmax({dim})", "100, 300, 700")
        candidate = generate(text)
        kernel = next(t for f, t in candidate.files.items() if f.endswith(".cu"))
        assert kernel.count("= x[") + kernel.count("load_vector(x") == 1
