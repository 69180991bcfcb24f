"""Narrow linear layers of many rows that follow each other as one generated kernel."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.products import qualify
from cuagent.expert.search.planner import propose
from cuagent.task import load_task

MLP = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear({inputs}, {width}), nn.Linear({width}, 40), nn.Linear(40, {outputs}, bias=False)
        self.weight = nn.Parameter(torch.randn({width}, {width}) * 0.1)
        self.to({dtype})
    def forward(self, x, y):
        return {body}
def get_inputs():
    return [torch.randn({rows}, {inputs}, dtype={dtype}), torch.randn({rows}, {outputs}, dtype={dtype})]
def get_init_inputs(): return []
"""  # noqa: E501
BODIES = {
    "three layers": "self.c(F.gelu(self.b(F.relu(self.a(x)))))",
    "no operation between": "self.c(self.b(self.a(x)))",
    "a residual and a scale": "y + 2 * self.c(torch.tanh(self.b(F.silu(self.a(x)))))",
    "a weight as it is": "self.c(F.relu(self.b(F.leaky_relu(self.a(x) @ self.weight, 0.1))))",
    "a batch of sequences": "self.c(F.relu(self.b(F.relu(self.a(x.view(-1, 3, {inputs})))))).flatten(0, 1)",  # noqa: E501
}
CHAINED = Options(small_products=True)


def mlp(
    body: str = "three layers", dtype: str = "float32", inputs: int = 70, width: int = 33,
    outputs: int = 3, rows: int = 1536,
) -> str:  # fmt: skip
    numbers = {"inputs": inputs, "width": width, "outputs": outputs, "rows": rows}
    text = BODIES[body].format(inputs=inputs)
    return MLP.format(body=text, dtype=f"torch.{dtype}", **numbers)


def layers_of(candidate) -> tuple[list[str], int]:
    """Return the layers of each chain's kernel, and the number of products that torch computes."""
    text = candidate.files["model_new.py"]
    return re.findall(r"layers of ([0-9 to]+) features", text), len(
        re.findall(r"F\.linear\(", text)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("body", list(BODIES))
def test_all_layers_are_one_kernel(generate, body, dtype):
    made = generate(mlp(body, dtype), options=CHAINED)
    widths = "70 to 33 to 33 to 40 to 3" if "weight" in body else "70 to 33 to 40 to 3"
    assert layers_of(made)[0] == [widths]
    assert len(made.kernels) == 1
    assert made.launches == 1
    assert not made.small_products, "nothing is left to try"


def test_layers_stay_apart_until_that_is_tried(generate, monkeypatch):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    made = generate(mlp())
    assert layers_of(made)[0] == []
    assert made.small_products


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("self.c(self.b(F.relu(h := self.a(x)))) + h.sum()", ["33 to 40 to 3"]),
        ("self.c(F.softmax(self.b(self.a(x)), -1))", ["70 to 33 to 40"]),
        ("self.c(self.b(self.a(x)).flip(0))", ["70 to 33 to 40"]),
        ("self.a(x), self.b(self.a(y.repeat(1, 30)[:, :70]))", None),
    ],
)
def test_a_chain_ends_where_another_node_reads_a_value(generate, monkeypatch, body, expected):
    monkeypatch.setitem(BODIES, "own", body)
    found = layers_of(generate(mlp("own"), options=CHAINED))[0]
    assert expected is None or found == expected


@pytest.mark.parametrize(("width", "rows"), [(129, 1536), (33, 15)])
def test_wide_layers_and_few_rows_are_no_case_for_it(generate, width, rows):
    found = layers_of(generate(mlp(width=width, rows=rows, dtype="bfloat16"), options=CHAINED))[0]
    assert "33" not in " ".join(found)
    assert all("129" not in widths.split(" to ")[1:] for widths in found)


def test_the_first_candidate_of_a_small_module_is_a_chain(tmp_path):
    """Layers of few operations stay with the library otherwise, and nothing would be tried."""
    path = tmp_path / "mlp.py"
    path.write_text(mlp("no operation between"))
    subject = replace(open_subject(load_task(f"{path}:Model")), target=Target("cuda", (9, 0), 132))
    assert make_candidate(subject, Options()) is None
    first = propose(subject, [])
    assert first is not None
    assert first.candidate.options.small_products


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("body", list(BODIES))
def test_results_agree(generate, interpreted, body, dtype):
    rows = 66 if "batch" in body else 70
    interpreted(generate(mlp(body, dtype, rows=rows), options=CHAINED), bf16=dtype == "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("inputs", "width", "outputs", "rows"),
    [(70, 33, 3, 1536), (64, 64, 64, 65536), (784, 128, 10, 999), (3, 128, 128, 4099)],
)
def test_results_agree_on_a_gpu(make, dtype, inputs, width, outputs, rows):
    for tiles in (0, 1, 2):
        text = mlp("a residual and a scale", dtype, inputs, width, outputs, rows)
        assert_agrees(make(text, "Model", replace(CHAINED, tiles=tiles), "cuda"), "cuda")
