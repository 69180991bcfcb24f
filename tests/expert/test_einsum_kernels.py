"""Einsums of small matrices as generated Triton kernels: which, their text, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from shares import slow_except

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.einsums.contraction import TileOperation, tile_operations
from cuagent.task import load_task

SMALL = Target("cuda", (9, 0), 2)
"""A target whose processors the small cases fill."""
CASES = {
    "state of a chunk": ("'bclhn,bhcl,bclhp->bchpn', x, s, y", (20, 6), (20, 24)),
    "masked product of a chunk": (
        "'bclhn,bcshn,bhcls,bcshp->bclhp', x, z, m, y",
        (20, 6),
        (20, 24),
    ),
    "output of a state": ("'bclhn,bchpn,bhcl->bclhp', x, t, s", (20, 6), (20, 24)),
    "long rows": ("'bhzc,bchpn->bzhpn', m[:, :, 0, :3, :3], w", (20, 6), (3, 24)),
    "two matrices in another order": ("'bclhn,bcshn->bhcls', x, z", (20, 6), (20, 24)),
    "sum over a letter of one operand": ("'bclhn,bcshn,bclhp->bchp', x, z, y", (20, 6), (20, 24)),
    "a broadcast letter": ("'bclhn,bcshn->bclhs', x, z[:, :1]", (20, 6), (20, 24)),
    "a letter of one operand in the grid": ("'bclhn,chpn->bclhp', x, t[0]", (20, 6), (20, 24)),
    "sides of 1 and 100": ("'bclhn,bcshn,bclhp->bcshp', x, z, y", (100, 1), (100, 70)),
}
"""Equation and operands, sizes of (l, n) of x and of (l, p) of y."""
TEXT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.b = torch.nn.Parameter(torch.randn(3, 2, {length}, 4, {columns}))
    def forward(self, x, y, z, s, m, t, w):
        value = torch.einsum({equation}){after}
        return value
def get_inputs():
    torch.manual_seed(1)
    b, c, h = 3, 2, 4
    shapes = [
        (b, c, {length}, h, {depth}), (b, c, {rows}, h, {columns}), (b, c, {length}, h, {depth}),
        (b, h, c, {length}), (b, h, c, {length}, {length}), (b, c, h, {columns}, {depth}),
        (b, 3, h, {columns}, {depth}),
    ]
    return [torch.randn(s, dtype=torch.{dtype}) for s in shapes]
def get_init_inputs(): return []
"""


def text_of(name: str, dtype: str = "float32", after: str = "") -> str:
    equation, (length, depth), (rows, columns) = CASES[name]
    return TEXT.format(
        equation=equation, length=length, depth=depth, rows=rows, columns=columns, dtype=dtype,
        after=after,
    )  # fmt: skip


@pytest.fixture
def generate(tmp_path: Path) -> Callable[..., Candidate | None]:
    def generate(text: str, target: Target = SMALL) -> Candidate | None:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=target)
        return make_candidate(subject, Options())

    return generate


def test_products_are_ordered_so_that_small_results_come_first() -> None:
    sizes = {"l": 64, "s": 64, "n": 16, "p": 64}
    assert tile_operations(("ln", "sn", "ls", "sp"), "lp", sizes) == (
        TileOperation("dot", 0, 1, "ls", "n"),
        TileOperation("multiply", 4, 2, "ls"),
        TileOperation("dot", 3, 5, "pl", "s"),
    )


@pytest.mark.parametrize(
    ("words", "result"),
    [(("abc", "cd"), "ad"), (("ka", "kb", "kc"), "abc")],
)
def test_no_operations_where_a_tile_needs_three_dimensions(words, result) -> None:
    sizes = dict.fromkeys("abcdk", 16)
    assert tile_operations(words, result, sizes) is None


@pytest.mark.parametrize(
    "name",
    slow_except(
        CASES,
        "state of a chunk",
        "long rows",
        "a broadcast letter",
        "a letter of one operand in the grid",
    ),
)
def test_einsum_is_one_kernel_that_reads_operands_in_their_layout(generate, name):
    candidate = generate(text_of(name, after=".sigmoid()"))
    assert candidate is not None
    module = candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    assert "torch.einsum" not in forward
    assert module.count("@triton.jit") == 1
    assert "tf32x3" in module or "sum over" in name or "of 1" in name
    compile(module, "model_new.py", "exec")


@pytest.mark.parametrize(
    "target", [Target("cuda", (7, 5), 2), Target("cpu"), Target("cuda", (9, 0), 999)]
)
def test_other_devices_and_few_blocks_get_no_kernel(generate, target):
    candidate = generate(text_of("state of a chunk"), target)
    assert candidate is None or "@triton.jit" not in candidate.files["model_new.py"]


def test_sum_of_two_einsums_is_the_second_ones_epilogue(generate):
    text = text_of("state of a chunk").replace(
        "return value", "return value + torch.einsum('bclhn,bcl,bclhp->bchpn', z, s[:, 0], y)"
    )
    candidate = generate(text)
    assert candidate is not None
    assert "_add_kernel[(" in candidate.files["model_new.py"]
    assert "aten.add" not in candidate.files["model_new.py"]


def test_two_kernels_compile_in_parallel(generate):
    second = "torch.einsum('bclhn,bcshn->bhcls', x, z)"
    candidate = generate(text_of("state of a chunk").replace("value\n", f"value, {second}\n"))
    assert candidate is not None
    assert candidate.files["model_new.py"].count(".warmup(") == 2


INTERPRETER = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=INTERPRETER) for d in ("float32", "float16")]
)
@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_fp64_in_the_interpreter(generate, interpreted, name, dtype):
    interpreted(generate(text_of(name, dtype, after=".sigmoid() * 2 + w.mean()")))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_epilogue_reads_tensors_that_are_broadcast(generate, interpreted):
    after = ".mul(t[..., :1]) + torch.einsum('bclhn,bcl,bclhp->bchpn', z, s[:, 0], y)"
    interpreted(generate(text_of("state of a chunk", after=after)))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_view_of_a_result_has_the_strides_of_torch(generate, interpreted):
    candidate = generate(text_of("long rows", after="[:, -1]"))
    interpreted(candidate)
    assert "@triton.jit" in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("bias", ["t[0, :, :1, :1, 0]", "t[:, :1, :1, :1, 0]", "t[..., 0]"])
def test_epilogue_reads_tensors_with_one_of_two_joined_letters(generate, interpreted, bias):
    text = text_of("sum over a letter of one operand", after=f" + {bias}")
    interpreted(generate(text))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_infinite_scale_of_a_padded_sum_is_no_nan(generate, interpreted):
    scale = "torch.where(s > 1, torch.inf, s.abs())"
    text = text_of("output of a state", after=".sigmoid()")
    interpreted(generate(text.replace("x, t, s", f"x.abs(), t.abs(), {scale}")))


def test_indices_of_large_tensors_have_64_bits(generate, monkeypatch):
    monkeypatch.setattr("cuagent.expert.einsums.triton.WIDE", 1)
    candidate = generate(text_of("long rows"))
    assert candidate is not None
    text = candidate.files["model_new.py"]
    assert "block = tl.program_id(0).to(tl.int64)" in text
    indices = [line for line in text.splitlines() if "_at = tl.arange(" in line]
    assert indices
    assert all(").to(tl.int64)" in line for line in indices)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_cuda_kernel_agrees_with_reference(make, monkeypatch, name, dtype):
    # The cases are smaller than a GPU.
    monkeypatch.setattr("cuagent.expert.einsums.match.LEAST_BLOCKS", 0.0)
    made = make(text_of(name, dtype, after=".sigmoid()"), "Model", Options(), "cuda")
    assert "@triton.jit" in made.candidate.files["model_new.py"]
    assert_agrees(made, "cuda")


def permuted_parameter(equation: str) -> str:
    """Return a task whose parameter `b` has its dimensions in another order in memory."""
    return f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.b = torch.nn.Parameter(torch.randn(3, 2, 4, 24, 20).permute(0, 1, 4, 2, 3))
    def forward(self, x, s):
        return {equation}
def get_inputs(): return [torch.randn(3, 2, 20, 4, 6), torch.randn(3, 4, 2, 20)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_parameter_in_another_memory_layout_is_copied_for_kernels(generate, interpreted):
    equation = "torch.einsum('bclhn,bhcl,bclhp->bchpn', x, s, self.b)"
    interpreted(generate(permuted_parameter(equation)))


def test_text_copies_a_parameter_in_another_memory_layout(generate):
    equation = "torch.einsum('bclhn,bhcl,bclhp->bchpn', x, s, self.b)"
    text = permuted_parameter(equation)
    assert "self.b.contiguous()" in generate(text).files["model_new.py"]
    text = text.replace(".permute(0, 1, 4, 2, 3)", "").replace("4, 24, 20", "20, 4, 24")
    assert "self.b.contiguous()" not in generate(text).files["model_new.py"]


def test_parameter_in_another_memory_layout_is_copied_for_cpu_kernels(make):
    made = make(permuted_parameter("(self.b * x.mean()).sin() + s.mean()"), "Model")
    assert_agrees(made)
