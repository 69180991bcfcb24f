"""Long rows that a cluster of blocks keeps in shared memory (`streaming.cuda_kept`)."""

from __future__ import annotations

import emulation  # type: ignore[import-not-found]
import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]
from shares import slow_after

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming import cuda_kept

HOPPER = Target("cuda", (9, 0), 132)
SOFTMAX = "return torch.softmax(x * 2 + y, -1)"
NORM = "return torch.layer_norm(x, x.shape[1:], y[0], y[1]) + x"
GROUPS = "return torch.group_norm(x, 2) * y[:, :, :1, :1] + y"
TASKS = {
    "softmax": (SOFTMAX, "3, 2048", "float32"),
    "softmax of rows without alignment": (SOFTMAX, "5, 1031", "float32"),
    "softmax in bfloat16": (SOFTMAX, "3, 2048", "bfloat16"),
    "softmax of bfloat16 without alignment": (SOFTMAX, "9, 1029", "bfloat16"),
    "norm with weights": (NORM, "4, 1500", "float32"),
    "norm with weights, without alignment": (NORM, "6, 1027", "float32"),
    "group norm": (GROUPS, "3, 4, 12, 26", "float32"),
    "group norm of odd planes": (GROUPS, "3, 4, 11, 23", "float32"),
    "two results": (
        "p = torch.softmax(x, -1); return p, (p * x).sum(-1), x.amax(-1)", "3, 1033", "float32"
    ),
    "division by a norm": ("return x / torch.norm(x, p=2, dim=1, keepdim=True)", "5, 1027", ""),
    "only rows": ("return torch.logsumexp(x - y.mean(-1, True), -1)", "3, 1029", "float32"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 4, 16])
@pytest.mark.parametrize("name", TASKS)
def test_emulated_kept_rows_agree_with_reference(tmp_path, monkeypatch, name, cluster):
    monkeypatch.setattr(cuda_kept, "LEAST_COLUMNS", 0)
    monkeypatch.setattr(cuda_kept, "CLUSTERS", (cluster,))
    monkeypatch.setattr(cuda_kept, "BLOCK_THREADS", (64,))
    body, shape, dtype = TASKS[name]
    text = reductions.text_of(body, shape, dtype or "float32")
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert "allow_shared" in emulation.cuda_text(candidate)
    assert ("store_remote" in emulation.cuda_text(candidate)) == (cluster > 1)
    assert ("allow_cluster" in emulation.cuda_text(candidate)) == (cluster > 8)


def test_rows_are_kept_where_the_gpu_has_clusters(generate):
    text = reductions.text_of(SOFTMAX, "70, 50000")
    assert "allow_shared" in emulation.cuda_text(generate(text, HOPPER))
    for target, options in (
        (Target("cuda", (8, 0), 108), Options()),
        (Target("cuda", (12, 0), 170), Options()),
        (HOPPER, Options(threads=256)),
        (HOPPER, Options(vector=False)),
    ):
        assert "allow_shared" not in emulation.cuda_text(generate(text, target, options))


@pytest.mark.parametrize(
    ("vectors", "cluster", "threads"),
    [(98304, 16, 512), (65536, 16, 512), (16384, 4, 512)],
    ids=["1.5 MB", "1 MB", "256 KB"],
)
def test_layouts_are_those_that_were_fast_on_an_h200(vectors, cluster, threads):
    chosen = cuda_kept.layout(vectors, vectors, 16)
    assert (chosen.cluster, chosen.threads) == (cluster, threads)
    assert chosen.resident > 1


@pytest.mark.parametrize(
    "shape",
    slow_after(1, ["70, 16384", "70, 1000000"]),
    ids=["registers", "larger than a cluster's memory"],
)
def test_other_rows_are_not_kept(generate, shape):
    assert "allow_shared" not in emulation.cuda_text(
        generate(reductions.text_of(SOFTMAX, shape), HOPPER)
    )


def test_values_of_disjoint_passes_share_memory():
    values = [cuda_kept.KeptValue("x", "float32", 0, 1), cuda_kept.KeptValue("y", "float32", 1, 2)]
    assert [v.place for v in cuda_kept.placed(values)[0]] == [0, 0]
    values.append(cuda_kept.KeptValue("z", "bfloat16", 1, 2))
    assert cuda_kept.placed(values)[1] == 6


CUDA_SHAPES = ["70, 50000", "66, 65535", "65, 30001", "70, 200000"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", CUDA_SHAPES)
@pytest.mark.parametrize("body", [SOFTMAX, NORM])
def test_kept_rows_agree_with_reference_on_cuda(make, body, shape, dtype):
    made = make(reductions.text_of(body, shape, dtype), "Model", device="cuda")
    assert_agrees(made, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", TASKS)
def test_small_kept_rows_agree_with_reference_on_cuda(make, monkeypatch, name, cluster):
    monkeypatch.setattr(cuda_kept, "LEAST_COLUMNS", 0)
    monkeypatch.setattr(cuda_kept, "CLUSTERS", (cluster,))
    body, shape, dtype = TASKS[name]
    made = make(reductions.text_of(body, shape, dtype or "float32"), "Model", device="cuda")
    assert_agrees(made, "cuda")


SHORT = {
    "a part of a warp": ("torch.layer_norm(x, (64,)) * y", "7, 3, 64", 16),
    "one thread": ("torch.softmax(x, -1) + y", "130, 4", 1),
    "odd rows": ("torch.softmax(x, -1) + y.amax(-1, True)", "67, 5", 8),
    "the place of an extreme": ("x.argmax(-1), y.argmin(-1, True)", "67, 11", 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_emulated_short_rows_share_a_warp(tmp_path, monkeypatch, name):
    body, shape, threads = SHORT[name]
    text = reductions.text_of(f"return {body}", shape)
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert f"THREADS = {threads};" in emulation.cuda_text(candidate)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHORT)
def test_short_rows_agree_with_reference_on_cuda(make, name, dtype):
    body, shape, _ = SHORT[name]
    text = reductions.text_of(f"return {body}", shape, dtype)
    assert_agrees(make(text, "Model", device="cuda"), "cuda")
