"""Matrix products as generated Triton kernels: which are matched, and that they are right."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Candidate, Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.products import halves, operands, qualify
from cuagent.expert.products.tiles import FEW_ROWS, FLOAT32, HALF, fitted, ranked

HOPPER = Target("cuda", (9, 0), 132)
BODIES = {
    "an activation": ("self.l = nn.Linear(520, 1000)", "return F.gelu(self.l(x)) * 2", ""),
    "a residual and a scale of each row": (
        "self.l = nn.Linear(520, 1000, bias=False)",
        "return torch.sigmoid(self.l(x) + y) * z",
        "torch.randn(3, 400, 1000), torch.randn(3, 400, 1)",
    ),
    "no epilogue": ("pass", "return x.flatten(0, 1) @ y.T", "torch.randn(1000, 520)"),
    "a row-major right operand": (
        "self.w = nn.Parameter(torch.randn(520, 1000) / 20)",
        "return torch.relu(torch.matmul(x, self.w) + 1)",
        "",
    ),
    "a bias, as in GPT-2": (
        "self.w = nn.Parameter(torch.randn(520, 1000)); self.b = nn.Parameter(torch.ones(1000))",
        "return F.gelu(torch.addmm(self.b, x.flatten(0, 1), self.w)).view(3, 400, 1000)",
        "",
    ),
    "a bias and a view, as in GPT-2": (
        "self.w = nn.Parameter(torch.randn(520, 1000)); self.b = nn.Parameter(torch.ones(1000))",
        "return F.gelu(torch.addmm(self.b, x.flatten(0, 1), self.w).view(3, 400, 1000)) * y",
        "torch.randn(3, 400, 1000)",
    ),
    "a part of a wider tensor": (
        "self.l = nn.Linear(260, 1024)",
        "return self.l(x[..., 260:]).tanh() + y[..., :1024]",
        "torch.randn(3, 400, 1100)",
    ),
}


def text_of(name: str, dtype: str = "torch.float32") -> str:
    init, forward, more = BODIES[name]
    arguments = ", ".join(["x", "y", "z"][: 1 + (more.count("torch."))])
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.to({dtype})
    def forward(self, {arguments}):
        {forward}
def get_inputs(): return [t.to({dtype}) for t in (torch.randn(3, 400, 520), {more})]
def get_init_inputs(): return []
"""


FORMS = {
    "batched": ("torch.bmm(x, y.mT).relu()", "3, 40, 70", "3, 50, 70"),
    "batched, right transposed": ("x @ y.mT + x.mean()", "2, 3, 40, 70", "2, 3, 50, 70"),
    "batched einsum": ("torch.einsum('bij,bkj->bik', x, y).relu()", "3, 40, 70", "3, 50, 70"),
    "sum of a product and a bias": ("torch.addmm(y[0], x, y).relu()", "40, 70", "70, 50"),
    "view of a product": (
        "torch.addmm(y[0], x, y).view(4, 10, 50).sigmoid() * 2",
        "40, 70",
        "70, 50",
    ),
    "view of a result": ("torch.addmm(y[0], x, y).sigmoid().view(4, 10, 50)", "40, 70", "70, 50"),
    "einsum of a matrix": ("torch.einsum('bijl,lk->bijk', x, y)", "2, 4, 10, 70", "70, 50"),
    "einsum with rows": ("torch.einsum('ij,kj->ik', x, y)", "40, 70", "50, 70"),
    "upper triangle": ("torch.triu(x @ y)", "140, 70", "70, 150"),
    "lower triangle": ("torch.tril(x @ y, 3)", "140, 70", "70, 150"),
    "long sums": ("torch.sigmoid(x @ y)", "40, 3000", "3000, 70"),
}
VECTORS = {
    "product with a vector": ("x @ y", "30, 520", "520, 1"),
    "layer with one output": ("F.linear(x, y)", "30, 520", "1, 520"),
    "layer of one row": ("F.linear(x, y).relu()", "1, 520", "40, 520"),
}


def form_of(name: str) -> str:
    body, *shapes = (FORMS | VECTORS)[name]
    x, y = (f"torch.randn({shape})" for shape in shapes)
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        return {body}
def get_inputs(): return [{x}, {y}]
def get_init_inputs(): return []
"""


@pytest.fixture
def any_size(monkeypatch):
    """Let small matrix products also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(operands, "LEAST_REUSE", 0)


def module_of(candidate: Candidate | None) -> str:
    assert candidate is not None
    return candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_product_and_all_operations_behind_it_are_one_kernel(generate, name):
    candidate = generate(text_of(name))
    module = module_of(candidate)
    assert len(candidate.kernels) == 1
    assert module.count("@triton.jit") - module.count("_of_element(x):") == 1
    assert 'input_precision="tf32x3"' in module
    forward = module[module.rindex("def forward") :]
    assert "F.linear" not in forward
    assert not any(file.endswith(".cu") for file in candidate.files)
    compile(module, "model_new.py", "exec")


def test_half_precision_product_with_epilogue_accumulates_in_float32(generate):
    module = module_of(generate(text_of("an activation", "torch.bfloat16")))
    assert "total = tl.dot(a, b, total)" in module
    assert ".to(tl.bfloat16), mask=inside" in module


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
@pytest.mark.parametrize("name", ["a bias, as in GPT-2", "a bias and a view, as in GPT-2"])
def test_views_of_a_product_do_not_part_it_from_what_follows(generate, name, dtype):
    made = generate(text_of(name, dtype))
    (kernel,) = made.kernels
    assert kernel.startswith("addmm_")
    assert "gelu" in kernel


def test_values_of_fewer_elements_are_read_by_the_rows_of_the_product(generate):
    text = text_of("a bias and a view, as in GPT-2").replace("* y", "* (y[0, 0] * 2).exp()")
    made = generate(text)
    assert not any("gelu" in name and "addmm" in name for name in made.kernels)


def test_half_precision_product_alone_stays_with_the_library(generate):
    text = text_of("no epilogue", "torch.bfloat16")
    assert generate(text) is None


GATE = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(520, 1000), nn.Linear(520, 1000)
        self.to(torch.bfloat16)
    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)
def get_inputs(): return [torch.randn(1200, 520, dtype=torch.bfloat16)]
def get_init_inputs(): return []
"""


def test_one_product_of_a_gate_takes_the_epilogue_and_reads_the_other(generate):
    candidate = generate(GATE)
    module = module_of(candidate)
    assert candidate.kernels == ("linear_silu_mul_kernel",)
    assert re.findall(r"(\w+) = F\.linear\(", module) == ["linear_1"]
    assert re.search(r"linear_silu_mul_kernel\[.*\]\(\s*mul, x, .*linear_1,", module)


@pytest.mark.parametrize(
    "target",
    [
        Target("cuda", (8, 9), 128),
        Target("cuda", (7, 5), 40),
        Target("cuda", (9, 0), 132, tf32=True),
        Target("cpu"),
    ],
    ids=["slow TF32", "no TF32", "TF32 admitted", "CPU"],
)
def test_float32_product_stays_with_the_library_where_splitting_gains_nothing(generate, target):
    candidate = generate(text_of("an activation"), target)
    assert candidate is None or "@triton.jit" not in module_of(candidate)


def test_small_product_stays_with_the_library(generate):
    text = text_of("an activation").replace("3, 400, 520", "2, 10, 520")
    candidate = generate(text)
    assert candidate is None or "@triton.jit" not in module_of(candidate)


def test_product_that_others_read_too_is_stored(generate):
    text = text_of("an activation").replace(
        "return F.gelu(self.l(x)) * 2", "h = self.l(x); return h, F.gelu(h) * 2"
    )
    module = module_of(generate(text))
    assert "linear_v.to(tl.float32)" in module
    assert "gelu" in module


def test_operand_with_another_stride_in_each_batch_is_not_an_epilogue(generate):
    text = text_of("a residual and a scale of each row").replace(
        "torch.randn(3, 400, 1000), torch.randn(3, 400, 1)",
        "torch.randn(3, 1, 1000), torch.randn(3, 400, 1)",
    )
    candidate = generate(text)
    assert len(candidate.kernels) == 2


def test_options_turn_products_off(generate):
    candidate = generate(text_of("an activation"), options=Options(products=False))
    assert candidate is None or "@triton.jit" not in module_of(candidate)


@pytest.mark.parametrize(
    ("capability", "stages"), [((9, 0), [3, 3, 4]), ((8, 0), [3, 3, 4]), ((8, 9), [2, 3, 3])]
)
def test_stages_of_a_tile_fit_into_the_shared_memory_of_a_block(capability, stages):
    assert [fitted(tile, capability, 2).stages for tile in HALF[:3]] == stages
    assert fitted(FEW_ROWS[2], (9, 0), 2, rights=2).stages == 4
    for tile in (*HALF, *FEW_ROWS):
        found = fitted(tile, capability, 2)
        used = found.stages * (tile.rows + tile.columns) * tile.depth * 2
        assert used <= {(9, 0): 227, (8, 0): 163, (8, 9): 99}[capability] << 10


def test_product_on_a_workstation_gpu_uses_as_many_stages_as_fit(generate):
    text = text_of("an activation", "torch.bfloat16").replace("400", "4000")
    stages = {
        capability: re.findall(r"num_stages=(\d)", module_of(generate(text, target)))
        for capability in ((9, 0), (8, 9))
        for target in [Target("cuda", capability, 128)]
    }
    assert stages == {(9, 0): ["3"], (8, 9): ["2"]}


def test_tiles_fill_the_processors_where_they_can():
    assert ranked(8192, 8192, "float32", 132)[0] == FLOAT32[0]
    few = ranked(256, 1024, "float32", 132)[0]
    assert few.rows * few.columns < FLOAT32[0].rows * FLOAT32[0].columns
    assert ranked(16, 8192, "bfloat16", 132)[0] == HALF[-1]
    assert ranked(100000, 16, "float32", 132)[0] == FLOAT32[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_other_forms_of_products_are_one_kernel_too(generate, any_size, name):
    candidate = generate(form_of(name))
    forward = module_of(candidate)
    forward = forward[forward.rindex("def forward") :]
    assert len([k for k in candidate.kernels if "mean" not in k]) == 1
    assert "torch.matmul" not in forward
    assert "aten.tri" not in forward


@pytest.mark.parametrize("name", VECTORS)
def test_product_with_a_vector_is_a_sum_over_rows(generate, name):
    candidate = generate(form_of(name))
    assert [path for path in candidate.files if path.endswith(".cu")]
    assert "@triton.jit" not in module_of(candidate)


def test_long_sums_of_few_results_stay_with_the_library(generate):
    body = FORMS["long sums"]
    text = form_of("long sums").replace(body[1], "256, 131072").replace(body[2], "131072, 256")
    candidate = generate(text.replace("randn", "empty"))
    assert candidate is None or "@triton.jit" not in module_of(candidate)


def test_batched_operands_are_not_copied(generate, any_size):
    candidate = generate(form_of("batched").replace("y.mT", "y").replace("50, 70", "70, 50"))
    assert candidate is None or "@triton.jit" not in module_of(candidate)


def test_product_that_broadcasts_its_batch_stays_with_the_library(generate, any_size):
    text = form_of("batched").replace("torch.bmm(x, y.mT)", "x @ y[:1].mT")
    candidate = generate(text)
    assert candidate is None or "@triton.jit" not in module_of(candidate)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", FORMS)
def test_kernel_agrees_with_fp64_in_the_interpreter(generate, any_size, interpreted, name):
    interpreted(generate(form_of(name)))


SPLITS = {
    "layer": "F.linear(x, y).relu() + x.mean()",
    "operand that the epilogue reads too": "F.linear(x, y) * x[:, :50]",
    "infinities": "F.linear(x, y).clamp(-100, 100)",
    "numbers near the largest": "F.linear(x, y)",
    "numbers of all sizes": "F.linear(x, y)",
    "rows of zeros": "F.linear(x, y) + 1",
    "triangle": "torch.tril(x @ y.t(), 3)",
    "row-major right operand": "x @ y.view(80, 50).sin()",
    "einsum of a transposed slice": (
        "torch.einsum('bji,bjk->bik', x.view(4, 10, 80)[..., 8:72], y[:40].view(4, 10, 80))"
    ),
    "product and bias": "torch.addmm(y[0, :50], x, y.view(80, 50))",
    "part of a wider tensor": "F.linear(x[:, 7:], y[:, 7:]).relu()",
    "both transposed": "x.t() @ y[:40].relu()",
    "batched": "torch.bmm(x.view(4, 10, 80), y[:40].view(4, 80, 10)).relu()",
    "batched, transposed": "torch.bmm(x.view(4, 10, 80).mT, y[:40].view(4, 10, 80))",
}
LARGE = {
    "numbers of all sizes": (
        "torch.randn(40, 80) * 10.0 ** torch.randint(-12, 12, (40, 80))",
        "torch.randn(50, 80)",
    ),
    "rows of zeros": (
        "torch.randn(40, 80).relu().index_fill(0, torch.tensor([3, 5]), 0)",
        "torch.randn(50, 80).index_fill(0, torch.tensor(7), 0)",
    ),
    "infinities": (
        "torch.randn(40, 80).index_fill(1, torch.tensor(7), math.inf)",
        "torch.randn(50, 80)",
    ),
    "numbers near the largest": (
        "torch.randn(40, 80).sign() * 3.4e38",
        "torch.randn(50, 80) * 1e-4",
    ),
}
"""Operands that float16 parts cannot represent, and special ones that they can."""


def split_text(name: str) -> str:
    text = form_of("einsum with rows").replace("torch.einsum('ij,kj->ik', x, y)", SPLITS[name])
    text = text.replace("70", "80")
    for old, new in zip(
        ("torch.randn(40, 80)", "torch.randn(50, 80)"), LARGE.get(name, ()), strict=False
    ):
        text = text.replace(old, new)
    return "import math\n" + text


@pytest.fixture
def split_small(monkeypatch, any_size):
    """Let the operands of small products also be split before the product."""
    monkeypatch.setattr(qualify, "LEAST_SPLIT_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_SPLIT_REUSE", 0)
    monkeypatch.setattr(qualify, "LEAST_SPLIT_DEPTH", 0)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("in_blocks", [False, True], ids=["by pointers", "in blocks"])
@pytest.mark.parametrize("name", SPLITS)
def test_product_of_split_operands_agrees_with_fp64(
    generate, split_small, interpreted, monkeypatch, name, in_blocks
):
    monkeypatch.setattr(halves, "LEAST_IN_BLOCKS", 0 if in_blocks else 1 << 62)
    candidate = generate(split_text(name))
    module = module_of(candidate)
    assert "_parts[" in module
    assert ("TensorDescriptor" in module) == in_blocks
    interpreted(candidate)


WEIGHTS = {
    "layer": ("nn.Linear(80, 50)", "self.l(x).relu() * 2"),
    "row-major weight": ("nn.ParameterList([torch.randn(80, 50)])", "x @ self.l[0] + 1"),
    "odd weight": ("nn.Linear(75, 50, bias=False)", "self.l(x[:, 2:77]) * x[:, :50]"),
    "weight of all sizes": (
        "nn.ParameterList([torch.randn(50, 80) * 10.0 ** torch.randint(-12, 12, (50, 80))])",
        "F.linear(x, self.l[0])",
    ),
    "weight with rows of zeros": (
        "nn.ParameterList([torch.randn(50, 80) * (torch.arange(50) % 7 != 3)[:, None]])",
        "F.linear(x, self.l[0])",
    ),
}


def weight_text(name: str) -> str:
    init, body = WEIGHTS[name]
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = {init}
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn(40, 80)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_of_split_product_is_split_once(generate, split_small, interpreted, name):
    candidate = generate(weight_text(name))
    module = module_of(candidate)
    forward = module[module.rindex("def forward") : module.index("def _prepare")]
    assert forward.count("_parts[") == 1
    interpreted(candidate)


def test_weight_of_a_large_product_is_split_once(generate):
    text = weight_text("layer").replace("80", "1024").replace("50", "2048").replace("40", "2048")
    module = module_of(generate(text))
    forward = module[module.rindex("def forward") : module.index("def _prepare")]
    assert forward.count("_parts[") == 1, "that of the input"
    assert "torch.float16" in module[module.index("def _prepare") :]


@pytest.mark.gpu
@pytest.mark.parametrize("name", WEIGHTS)
def test_cuda_product_with_split_weight_agrees_with_reference(make, split_small, name):
    assert_agrees(make(weight_text(name), "Model", Options(), "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("in_blocks", [False, True], ids=["by pointers", "in blocks"])
@pytest.mark.parametrize("name", SPLITS)
def test_cuda_product_of_split_operands_agrees_with_reference(
    make, split_small, monkeypatch, name, in_blocks
):
    monkeypatch.setattr(halves, "LEAST_IN_BLOCKS", 0 if in_blocks else 1 << 62)
    assert_agrees(make(split_text(name), "Model", Options(), "cuda"), "cuda")


def test_operands_of_large_float32_products_alone_are_split(generate):
    large = (
        form_of("einsum with rows").replace("40, 70", "2048, 1024").replace("50, 70", "2048, 1024")
    )
    assert "_parts[" in module_of(generate(large))
    assert "_parts[" not in module_of(generate(large, options=Options(split=False)))
    assert "_parts[" not in module_of(generate(large, Target("cuda", (8, 0), 108)))
    assert "_parts[" not in module_of(generate(large.replace("2048, 1024", "256, 4096")))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*FORMS, *VECTORS])
def test_cuda_candidate_of_other_forms_agrees_with_reference(make, any_size, name):
    assert_agrees(make(form_of(name), "Model", Options(), "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [0, 2, 4])
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16", "torch.float16"])
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name, dtype, tiles):
    if dtype != "torch.float32" and name == "no epilogue":
        return  # the library computes it, and there is nothing else
    assert_agrees(make(text_of(name, dtype), "Model", Options(tiles=tiles), "cuda"), "cuda")


def test_no_variable_of_a_kernel_has_the_name_of_an_input(generate):
    """torch.export lowers the case of names, so that inputs A and B become a and b."""
    text = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, A, right, total, k):
        return (A @ right) * total + k
def get_inputs():
    return [torch.randn(1024, 1024) for _ in range(4)]
def get_init_inputs(): return []
"""
    tree = ast.parse(module_of(generate(text)))
    functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
    kernels = [f for f in functions if f.name.endswith("_kernel")]
    assert kernels
    for kernel in kernels:
        stored = [n.id for n in ast.walk(kernel) if isinstance(n, ast.Name) and _is_store(n)]
        assert set(stored).isdisjoint(a.arg for a in kernel.args.args)


def _is_store(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def test_equal_layers_share_the_text_of_their_kernel(generate, monkeypatch):
    init = "self.a, self.b, self.c = nn.Linear(520, 520), nn.Linear(520, 520), nn.Linear(520, 300)"
    text = text_of("an activation").replace("self.l = nn.Linear(520, 1000)", init)
    monkeypatch.setattr(qualify, "LEAST_SPLIT_OPERATIONS", 0)
    text = text.replace("F.gelu(self.l(x)) * 2", "self.c(self.b(self.a(x).relu()).relu()).relu()")
    candidate = generate(text)
    module = module_of(candidate)
    definitions = module.count("@triton.jit") - module.count("_parts(\n    high_out")
    assert definitions == len(candidate.kernels) == 1
    first = candidate.kernels[0]
    assert module[module.rindex("def forward") :].count(f"{first}[(") == 2
    assert {"relu", "relu_1"} <= candidate.origins[0], "both uses are left out together"


@pytest.mark.parametrize("number", ["float('inf')", "-float('inf')"])
def test_numbers_that_are_not_finite_have_a_name_in_triton(generate, number):
    body = f"y = self.l(x); return torch.where(y > 0, y * 2, {number})"
    text = text_of("an activation").replace("return F.gelu(self.l(x)) * 2", body)
    module = module_of(generate(text))
    kernel = module[module.index("@triton.jit") : module.index("class ModelNew")]
    names = {node.id for node in ast.walk(ast.parse(kernel)) if isinstance(node, ast.Name)}
    assert not names & {"nan", "inf"}
    assert 'float("' in kernel


def test_comparison_that_is_stored_is_no_epilogue(generate):
    text = text_of("an activation").replace("F.gelu(self.l(x)) * 2", "torch.exp(self.l(x)) > 1")
    made = generate(text)
    assert made is None or "linear_kernel" in made.kernels
