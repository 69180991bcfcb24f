"""Small products as generated kernels: of few rows in half precision (single tokens of a decoder),
and batches of small matrices (pairs of features)."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.products import qualify
from cuagent.expert.products.tiles import FEW_ROWS, ranked
from cuagent.expert.search.choices import choices
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import Bounds, Outcome
from cuagent.expert.search.planner import propose
from cuagent.task import load_task
from cuagent.timing import Ratio

MLP = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(144, 104, bias={bias}), nn.Linear(144, 104, bias={bias})
        self.down = nn.Linear(104, 144, bias={bias})
        self.to({dtype})
    def forward(self, x):
        h = F.silu(self.gate(x)) * self.up(x)
        return {result}
def get_inputs(): return [torch.randn({rows}, 1, 144, dtype={dtype})]
def get_init_inputs(): return []
"""
RESULTS = {
    "a residual": "x + self.down(h)",
    "a gate that others read": "x + self.down(h) * self.up(x).mean()",
    "a gate of the same product": "x + self.down(F.silu(self.gate(x)) * self.gate(x))",
    "three products": "x + self.down(h * self.up(x * 2))",
}
FEW = Options(small_products=True)


def mlp(result: str = "a residual", dtype: str = "bfloat16", rows: int = 4, bias: bool = True):
    return MLP.format(dtype=f"torch.{dtype}", rows=rows, bias=bias, result=RESULTS[result])


@pytest.fixture
def any_weights(monkeypatch):
    monkeypatch.setattr(qualify, "LEAST_WEIGHTS", 0)


def calls_of(candidate) -> tuple[list[str], int]:
    """Return the kernels of a candidate and the number of products that torch computes."""
    forward = candidate.files["model_new.py"]
    return [*candidate.kernels], len(re.findall(r"= F\.linear\(", forward))


def test_both_products_of_a_gate_and_what_follows_are_one_kernel(generate, any_weights):
    made = generate(mlp(), options=FEW)
    assert calls_of(made) == (["linear_silu_mul_kernel", "linear_add_kernel"], 0)
    text = made.files["model_new.py"]
    assert "total_2 = tl.dot(a, b_2, total_2)" in text
    assert not made.small_products, "nothing is left to try"


def test_products_of_few_rows_stay_with_the_library_until_they_are_tried(generate, any_weights):
    made = generate(mlp())
    assert calls_of(made)[1] == 3
    assert made.small_products


def test_float32_is_no_case_for_it(generate, any_weights):
    made = generate(mlp(dtype="float32"), options=FEW)
    assert calls_of(made)[1] == 3
    assert not made.small_products


def test_products_of_more_rows_are_kernels_with_what_follows_them(generate, any_weights):
    """Of so few multiplications a launch takes most of the time; one kernel saves one or two."""
    default, made = generate(mlp(rows=17)), generate(mlp(rows=17), options=FEW)
    assert calls_of(default)[1] == 3
    assert default.saved_launches >= 2
    assert calls_of(made) == (["linear_silu_mul_kernel", "linear_add_kernel"], 1)
    assert "total_2" not in made.files["model_new.py"], "that is for 16 rows at most"
    assert not made.saved_launches


@pytest.mark.parametrize(("seconds", "tried"), [(50e-6, True), (5e-3, False)])
def test_a_launch_is_saved_only_where_it_takes_a_share_of_the_time(tmp_path, seconds, tried):
    path = tmp_path / "mlp.py"
    path.write_text(mlp("a gate of the same product", rows=17))
    subject = replace(open_subject(load_task(f"{path}:Model")), target=Target("cuda", (9, 0), 132))
    first = make_candidate(subject, Options())
    outcomes = [Outcome(first, True, "", 1, {"eager": Ratio(3.0, 2.9, 3.1)}, seconds=seconds)]
    assert first is not None
    assert first.small_products is False
    found = {
        options.small_products for options, _ in choices(subject, outcomes, Bounds(), Memory())
    }
    assert (True in found) is tried


def test_small_weights_are_no_case_for_it(generate):
    made = generate(mlp(), options=FEW)
    assert calls_of(made)[1] == 3
    assert not made.small_products


def test_the_search_tries_it_after_the_first_candidate(tmp_path, any_weights):
    path = tmp_path / "mlp.py"
    path.write_text(mlp())
    subject = replace(open_subject(load_task(f"{path}:Model")), target=Target("cuda", (9, 0), 132))
    first = make_candidate(subject, Options(graph=True))
    ratios = {"eager": Ratio(3.0, 2.9, 3.1), "compile+cuda_graph": Ratio(0.99, 0.98, 1.0)}
    outcomes = [Outcome(first, True, "", 1, ratios, seconds=56e-6, own_share=0.1)]
    second = propose(subject, outcomes)
    assert second is not None
    assert second.candidate.options.small_products


def test_a_product_that_others_read_is_no_second_one(generate, any_weights):
    kernels, left = calls_of(generate(mlp("a gate that others read"), options=FEW))
    assert "linear_silu_mul_kernel" in kernels
    assert left == 1


def test_a_block_keeps_64_kib_of_weights_in_flight_and_blocks_fill_the_processors():
    assert {tile.columns * tile.depth * 2 * (tile.stages - 1) for tile in FEW_ROWS} == {64 << 10}
    for columns, best in ((8192, 64), (2048, 16)):
        assert ranked(4, columns, "bfloat16", 132, among=FEW_ROWS)[0].columns == best


PAIRS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({batch}, 17, {depth}, dtype={dtype})]
def get_init_inputs(): return []
"""
FORMS = {
    "pairs": "torch.bmm(x, x.transpose(1, 2))",
    "pairs and what follows": "torch.matmul(x, x.mT).relu() * 2",
}


def pairs(name: str = "pairs", dtype: str = "float32", batch: int = 6, depth: int = 36):
    return PAIRS.format(body=FORMS[name], dtype=f"torch.{dtype}", batch=batch, depth=depth)


@pytest.fixture
def any_batch(monkeypatch):
    monkeypatch.setattr(qualify, "LEAST_BATCH", 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_batches_of_small_products_are_a_kernel_if_that_is_tried(generate, dtype):
    text = pairs("pairs and what follows", dtype, 32768, 32)
    default, tried = generate(text), generate(text, options=FEW)
    assert "torch.matmul(" in default.files["model_new.py"]
    assert default.small_products
    launch = tried.files["model_new.py"].partition("[(1, 32768)](")[2]
    assert "32, 32, 32, num_warps=1, num_stages=2" in launch
    assert not tried.small_products
    assert generate(pairs(batch=100), options=FEW) is None, "too few to take any time"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_batch_of_small_products_agrees_with_fp64_in_the_interpreter(
    generate, any_batch, interpreted, name, dtype
):
    interpreted(generate(pairs(name, dtype), options=FEW), bf16=dtype == "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [32, 36, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_cuda_batch_of_small_products_agrees_with_reference(make, name, dtype, depth):
    for tiles in (0, 1):
        options = Options(small_products=True, tiles=tiles)
        text = pairs(name, dtype, 5000, depth)
        assert_agrees(make(text, "Model", options, "cuda"), "cuda")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("result", RESULTS)
def test_kernels_agree_with_fp64_in_the_interpreter(
    generate, any_weights, interpreted, result, bias
):
    interpreted(generate(mlp(result, bias=bias), options=FEW), bf16=True)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", range(len(FEW_ROWS)))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("result", RESULTS)
def test_cuda_candidate_agrees_with_reference(make, any_weights, result, dtype, tiles):
    options = Options(small_products=True, tiles=tiles)
    for rows in (1, 4, 16):
        assert_agrees(make(mlp(result, dtype, rows), "Model", options, "cuda"), "cuda")
