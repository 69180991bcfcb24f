"""Attention as a generated Triton kernel: its text, and its results in Triton's interpreter."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from shares import slow_after
from test_attention import FORMS, GROUPS, HEADS, text_of  # type: ignore[import-not-found]

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
SMALL = Target("cuda", (9, 0), 8)
"""A target whose processors a few heads fill, so that the keys are not split."""
OWN = Options(own_attention=True)
KERNELS = {
    "softcap": ("q, k, v", "(torch.tanh(q @ k.mT / 5) * 5).softmax(-1) @ v", HEADS),
    "values of another size": ("q, k, v", "(q @ k.mT).softmax(-1) @ v[..., :5]", HEADS),
    "a fill that leaves weight": (
        "q, k, v, m",
        "(q @ k.mT).masked_fill(m < 0, -2.0).softmax(-1) @ v",
        HEADS + ", torch.randn(9, 13)",
    ),
    "a factor for each score, and a negative one": (
        "q, k, v, m",
        "((q @ k.mT) * m * -0.5).softmax(-1) @ v",
        HEADS + ", torch.randn(9, 13)",
    ),
    "softcap, causal, grouped heads, joined": (
        "q, k, v",
        "((torch.tanh(q @ k.repeat_interleave(2, 1).mT * 0.2) * 5).masked_fill("
        "torch.ones(9, 9).triu(1).bool(), float('-inf')).softmax(-1)"
        " @ v.repeat_interleave(2, 1)).transpose(1, 2).reshape(2, 9, 32)",
        GROUPS,
    ),
    "one query, many keys": (
        "q, k, v",
        "(torch.tanh(q @ k.mT) * 3).softmax(-1) @ v",
        "torch.randn(2, 4, 1, 40), torch.randn(2, 4, 1500, 40), torch.randn(2, 4, 1500, 40)",
    ),
}
CALLS = {
    "call": ("q, k, v", "F.scaled_dot_product_attention(q, k, v) * 2", HEADS),
    "causal call": (
        "q, k, v",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7).transpose(1, 2) + 1",
        HEADS,
    ),
    "call with grouped heads": (
        "q, k, v",
        "F.scaled_dot_product_attention(q, k, v, enable_gqa=True) * 2",
        GROUPS,
    ),
}
"""Calls of the library's attention in the task's own text."""
LIBRARY = {name: FORMS[name] for name in ("matmul", "bias and mask", "causal constant", "einsum")}
LIBRARY |= CALLS
INTERPRETED = """
import sys, torch
sys.path.insert(0, {folder!r})
import task, model_new
torch.manual_seed(0)
inputs = task.get_inputs()
if {empty}:
    inputs[-1][0] = -1.0  # queries without a key
reference = task.Model()
with torch.no_grad():
    exact = reference(*[t.double() for t in inputs])
    expected = reference(*inputs)
    got = model_new.ModelNew()(*inputs)
assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
assert bool((got.isnan() == exact.isnan()).all())
exact, got, expected = (t.double().nan_to_num() for t in (exact, got, expected))
error, bound = ((t - exact).norm() / exact.norm() for t in (got, expected))
assert error <= 4 * bound + 4e-7, (error, bound)
"""


@pytest.fixture
def generate(tmp_path: Path) -> Callable[..., Candidate | None]:
    """Return a function that generates a candidate of a task text for a target, which need not
    exist on this machine."""

    def generate(text: str, target: Target = HOPPER, options: Options | None = None):
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=target)
        return make_candidate(subject, options or Options())

    return generate


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_attention_that_the_library_cannot_compute_is_a_kernel(generate, name):
    module = generate(text_of(KERNELS[name])).files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    assert "softmax" not in forward
    assert "scaled_dot_product_attention" not in forward
    assert "tf32x3" in module
    compile(module, "model_new.py", "exec")


def test_attention_of_the_library_is_a_kernel_on_request(generate):
    text = text_of(FORMS["matmul"])
    assert "@triton.jit" not in generate(text).files["model_new.py"]
    assert "@triton.jit" in generate(text, options=OWN).files["model_new.py"]


@pytest.mark.parametrize("name", CALLS)
def test_call_of_the_library_is_a_kernel_on_request(generate, name):
    text = text_of(CALLS[name])
    first = generate(text)
    assert first is None or "@triton.jit" not in first.files["model_new.py"]
    made = generate(text, options=OWN).files["model_new.py"]
    assert "F.scaled_dot_product_attention" not in made[made.rindex("def forward") :]


@pytest.mark.parametrize(
    ("heads", "rows", "dtype", "own"),
    slow_after(
        2,
        [
            (200, 32, "float32", True),
            (200, 33, "float32", False),
            (200, 2, "float32", True),
            (20, 2, "float32", False),
            (200, 2, "float16", False),
            (70000, 2, "float32", False),
        ],
    ),
)
@pytest.mark.parametrize(
    "body", ["F.scaled_dot_product_attention(q, q, q) * 2", "(q @ q.mT).softmax(-1) @ q"]
)
def test_many_heads_of_few_rows_are_a_kernel(generate, body, heads, rows, dtype, own):
    text = text_of(("q", body, f"torch.randn({heads}, 2, {rows}, 16)"), f"torch.{dtype}")
    candidate = generate(text)
    assert (candidate is not None and "tl.dot" in candidate.files["model_new.py"]) is own


def test_kernel_left_to_torch_is_a_fused_call(generate):
    text = text_of(
        ("q", CALLS["call"][1].replace("q, k, v", "q, q, q"), "torch.randn(200, 2, 3, 8)")
    )
    made = generate(text)
    kept = generate(text, options=Options(keep=made.origins[0] | made.origins[-1]))
    assert kept is None or "F.scaled_dot_product_attention" in kept.files["model_new.py"]


@pytest.mark.parametrize("target", [Target("cuda", (7, 5), 40), Target("cpu")])
def test_devices_without_the_tensor_cores_get_no_kernel(generate, target):
    candidate = generate(text_of(KERNELS["softcap"]), target)
    assert candidate is None or "@triton.jit" not in candidate.files["model_new.py"]


def test_few_rows_split_the_keys_and_many_do_not(generate):
    few = generate(text_of(KERNELS["one query, many keys"])).files["model_new.py"]
    assert "_joined[" in few
    assert "_joined[" not in generate(text_of(KERNELS["softcap"])).files["model_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_tiles_fit_into_shared_memory_of_the_device(generate, capability):
    inputs = ", ".join(["torch.randn(1, 8, 512, 128)"] * 3)
    text = text_of(("q, k, v", KERNELS["softcap"][1], inputs), "torch.bfloat16")
    module = generate(text, Target("cuda", capability, 100)).files["model_new.py"]
    words = re.search(r"(\d+), (\d+), num_warps=\d+, num_stages=(\d+)", module)
    rows, columns, stages = map(int, words.groups())
    limit = {(8, 0): 163, (9, 0): 227}.get(capability, 99)
    assert 2 * 128 * (rows + 2 * stages * columns) <= limit * 1024


def test_other_tiles_are_other_candidates(generate):
    text = text_of(KERNELS["one query, many keys"])
    texts = {generate(text, options=Options(tiles=k)).files["model_new.py"] for k in range(3)}
    assert len(texts) > 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("target", [HOPPER, SMALL], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float16"])
@pytest.mark.parametrize("name", [*KERNELS, *LIBRARY])
def test_kernel_agrees_with_fp64_in_the_interpreter(
    generate, tmp_path, python, monkeypatch, name, dtype, target
):
    form = (KERNELS | LIBRARY)[name]
    if dtype != "torch.float32" and "ones(" not in form[1] and "full(" in form[1]:
        return  # torch has no product of float32 weights and half values
    candidate = generate(text_of(form, dtype), target, OWN)
    for path, text in candidate.files.items():
        (tmp_path / path).write_text(text)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    program = INTERPRETED.format(folder=str(tmp_path), empty=name == "bias and mask")
    done = subprocess.run([*python, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16", "torch.float16"])
@pytest.mark.parametrize("name", [*KERNELS, *LIBRARY])
def test_cuda_kernel_agrees_with_reference(make, name, dtype, tiles):
    form = (KERNELS | LIBRARY)[name]
    if dtype != "torch.float32" and "ones(" not in form[1] and "full(" in form[1]:
        return
    body = form[1].replace("ones(9, 9)", "ones(9, 9, device=q.device)")
    body = body.replace("float('-inf')), 1)", "float('-inf'), device=q.device), 1)")
    text = text_of((form[0], body, form[2]), dtype)
    assert_agrees(make(text, "Model", replace(OWN, tiles=tiles), "cuda"), "cuda")


JOINED = {
    "softmax of scaled scores": ("(q @ k.mT * 0.3).softmax(-1) @ v", False),
    "causal": ("F.scaled_dot_product_attention(q, k, v, is_causal=True)", False),
    "a negative scale": ("(q @ k.mT * -0.3).softmax(-1) @ v", True),
    "softcap": ("(torch.tanh(q @ k.mT) * 5).softmax(-1) @ v", True),
}


@pytest.mark.parametrize("name", JOINED)
def test_largest_score_less_the_maximum_is_zero(generate, name):
    expression, without_fusion = JOINED[name]
    candidate = generate(text_of(("q, k, v", f"{expression} + 1", HEADS)), SMALL, OWN)
    text = candidate.files["model_new.py"]
    assert "def scored_attention_kernel" in text
    assert ("enable_fp_fusion=False" in text) is without_fusion
    kernel = text.partition("def scored_attention_kernel")[2].partition("tl.store")[0]
    assert ("s = s * " in kernel) is without_fusion
