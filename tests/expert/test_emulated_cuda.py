"""CUDA kernels compute the right values when a CPU runs their text (`emulated.h`), in float32."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import test_depthwise as depthwise  # type: ignore[import-not-found]
import test_empty_parts as empty_parts  # type: ignore[import-not-found]
import test_gathers as gathers  # type: ignore[import-not-found]
import test_labels as labels  # type: ignore[import-not-found]
import test_layouts as layouts  # type: ignore[import-not-found]
import test_loops as loops  # type: ignore[import-not-found]
import test_pooling as pooling  # type: ignore[import-not-found]
import test_products as products  # type: ignore[import-not-found]
import test_recurrences as recurrences  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
import test_scans as scans  # type: ignore[import-not-found]
from agreement import Imported, assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.loops import cuda_layout
from cuagent.expert.pooling import cuda_strips
from cuagent.expert.streaming import cuda_map, cuda_staged
from cuagent.task import load_task

pytestmark = pytest.mark.slow

NORM = "all but the second, and their norm"
TASKS = {
    "rows of a scan": scans.text_of("a masked sum", 2, "3, 7, 1031"),
    "short rows of a reversed scan": scans.text_of("a reversed sum", 2, "3, 7, 65"),
    "rows of a cumulative maximum": scans.text_of("a maximum", 2, "3, 7, 1031"),
    "columns of cumulative extremes": scans.text_of("a minimum inside arithmetic", 1, "3, 300, 5"),
    "columns of a scan": scans.text_of("a sum inside arithmetic", 1, "3, 300, 5"),
    "max pool": pooling.text_of("max between elementwise operations"),
    "mean pool": pooling.text_of("mean inside with ceil mode"),
    "adaptive mean": pooling.text_of("adaptive mean"),
    **{f"channels-last: {n}": layouts.text_of(n) for n in ("kept sums", "group norm", "max pool")},
    **{f"strides: {n}": layouts.text_of(n) for n in layouts.SLICED},
    "bilinear": pooling.text_of("bilinear between corners"),
    **{f"depthwise: {name}": depthwise.text_of(name) for name in depthwise.EMULATED},
    **{name: products.form_of(name) for name in products.VECTORS},
    "lookup and norm": gathers.text_of("embedding and position"),
    "joined lookups": gathers.text_of("joined embeddings"),
    **{f"labels: {name}": labels.text_of(name) for name in labels.EMULATED},
    "norm over several dimensions": reductions.text_of(reductions.BODIES[NORM], "9, 70, 3, 64"),
    "split columns": reductions.text_of("return (x * y).sum(0) + 1, x.amax(0)", "20000, 8"),
    "split rows": reductions.text_of("return (x * y).mean((0, 2)) + 1", "3, 2, 40000"),
    "split columns and stored elements": reductions.text_of(
        "h = x * y; return h, h.sum(0) + 1", "20000, 8"
    ),
    "split rows and stored elements": reductions.text_of(
        "h = x * y; return h - 1, h.amax(1)", "2, 70000"
    ),
    "few centred columns": reductions.text_of("return x - y.mean(0, keepdim=True)", "3000, 5"),
    "few centred rows": reductions.text_of("return x - y.mean(1, keepdim=True)", "65, 65539"),
    "rotary heads with an empty rest": empty_parts.HEADS.format(
        body=empty_parts.BODIES["empty rest of the heads"]
    ).replace(".bfloat16()", ""),
    "extremes": reductions.text_of("v, i = (x * 2).max(1); return v + 1, i", "9, 70, 65"),
}


LOOPS = {
    "selective scan": loops.selective(2, 7, 35, 16),
    "selective scan of odd sizes": loops.selective(1, 9, 5, 7),
    "selective scan with many lanes": loops.selective(1, 6, 3, 40),
    **{name: loops.text_of(*loops.LOOPS[name]) for name in loops.LOOPS},
}


LABELS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(x, labels)
def get_inputs(): return [torch.randn(12, 128), torch.randint(0, 128, (12,))]
def get_init_inputs(): return []
"""
FAR_ROWS = {
    "norm over the channels of places": (
        "torch.layer_norm(x.permute(0, 2, 3, 1), (90,)) * 2", "3, 90, 7, 9"
    ),
    "many channels": ("torch.layer_norm(x.permute(0, 2, 1), (700,))", "2, 700, 35"),
    "rows adjacent in the first dimension": (
        "torch.layer_norm(x.permute(2, 0, 1) + y.reshape(70, 3, 40), (40,))", "3, 40, 70"
    ),
    "softmax and a second tensor": (
        "torch.softmax(x.transpose(1, 2), -1) + y.transpose(1, 2)", "3, 40, 70"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAR_ROWS)
def test_emulated_rows_are_read_through_shared_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    body, shape = FAR_ROWS[name]
    text = reductions.text_of(f"return {body}", shape)
    candidate = check(tmp_path, monkeypatch, text, Options())
    (kernel,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    assert "__shared__" in kernel


def test_emulated_loss_reads_rows_in_vectors_beside_the_picked_element(tmp_path, monkeypatch):
    candidate = check(tmp_path, monkeypatch, LABELS, Options())
    kernel = next(t for f, t in sorted(candidate.files.items()) if "ITEMS" in t)
    assert "VECTOR = 4" in kernel


@pytest.mark.parametrize("row", [8, 1 << 20], ids=["a row for each block", "flat"])
def test_emulated_elements_without_vectors_are_loaded_ahead(tmp_path, monkeypatch, row):
    monkeypatch.setattr(cuda_map, "AHEAD_SIZE", 0)
    monkeypatch.setattr(cuda_map, "AHEAD_ROW", row)
    text = reductions.text_of("return x * 2 + torch.sigmoid(y[:, :1, :1]), y - x", "3, 41, 1031")
    candidate = check(tmp_path, monkeypatch, text, Options())
    (kernel,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    assert "AHEAD" in kernel


OVERLAPPING = {
    **{
        name: reductions.text_of(body.replace("F.", "torch.nn.functional."), "2, 8, 23, 30")
        for name, body in pooling.OVERLAPPING.items()
        if name != "dilated"
    },
    "channels-last": layouts.text_of("max pool"),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_emulated_threads_pool_several_overlapping_windows(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    candidate = check(tmp_path, monkeypatch, OVERLAPPING[name], Options())
    kernels = [t for f, t in candidate.files.items() if f.endswith(".cu")]
    assert any(re.search(r"float joined\[\d\]", text) for text in kernels)


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
    "lstm": recurrences.LAYERS["lstm, both directions, given states"],
    # fewer steps than on a CPU, because their emulation takes half a minute
    "many rows": (*recurrences.LAYERS["many rows"][:2], "torch.randn(2, 29, 6)"),
    "wide gru": ("self.r = nn.GRU(6, 150)", "return self.r(x)[0]", "torch.randn(5, 9, 6)"),
    "gru with weights in shared memory": (
        "self.r = nn.GRU(6, 290, 2, batch_first=True)",
        "return self.r(x)[0]",
        "torch.randn(3, 4, 6)",
    ),
    "lstm with weights in shared memory": (
        "self.r = nn.LSTM(6, 512, bidirectional=True, bias=False)",
        "y, (h, c) = self.r(x); return y, h, c",
        "torch.randn(3, 9, 6)",
    ),
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_emulated_rows_of_half_precision(tmp_path, monkeypatch, dtype):
    text = reductions.text_of("return torch.softmax(x * 2 + y, -1)", "5, 136", dtype)
    candidate = check(tmp_path, monkeypatch, text, Options())
    assert any("half_cuda.h" in t for f, t in candidate.files.items() if f.endswith(".cu"))
