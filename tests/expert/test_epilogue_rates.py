"""Products of half precision: which get a kernel with an epilogue, by rates and bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.products.product import Matrix, Product
from cuagent.expert.products.rates import epilogue_pays, library_time, own_time
from cuagent.task import load_task

HOPPER, AMPERE = Target("cuda", (9, 0), 132), Target("cuda", (8, 0), 108)
SILU, GELU, TANH = ("silu", "mul"), ("gelu",), ("mul",) * 7 + ("tanh", "add", "mul")
MEASURED = [
    # rows, columns, K, epilogue, tensors that it reads, us of one kernel, of the library's product
    # and of an elementwise kernel, on an H200
    (4096, 14336, 4096, SILU, 1, 830, 620, 117),
    (4096, 9728, 2560, SILU, 1, 390, 270, 50),
    (2048, 9216, 2304, ("gelu_tanh", "mul"), 1, 177, 118, 28),
    (4096, 8192, 2048, SILU, 1, 253, 177, 66),
    (4096, 3072, 1024, SILU, 1, 58, 37, 26),
    (1024, 2816, 1024, SILU, 1, 18, 11, 4),
    (12608, 3072, 768, GELU, 0, 125, 90, 56),
    (8192, 3072, 768, TANH, 0, 97, 56, 33),
    (6000, 3072, 768, GELU, 0, 68, 44, 27),
    (4096, 3072, 768, GELU, 0, 43, 30, 17),
    (4928, 2048, 512, ("mul", "sigmoid", "mul"), 0, 32, 19, 8),
]
TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear({depth}, 1024, bias=False, dtype=torch.bfloat16)
    def forward(self, x, y):
        return {body}
def get_inputs():
    return [torch.zeros({rows}, {depth}).bfloat16(), torch.zeros({rows}, 1024).bfloat16()]
def get_init_inputs(): return []
"""
GATE, ACTIVATION = "F.silu(self.up(x)) * y", "F.gelu(self.up(x))"


def product_of(rows: int, columns: int, depth: int, operations: tuple[str, ...]) -> Product:
    node = Node("x", Kind.LIBRARY, "F.linear({0}, {1})", (), (rows, columns), "bfloat16")
    epilogue = [replace(node, name="view", kind=Kind.VIEW, op="view")]
    epilogue += [
        replace(node, name=f"y{k}", kind=Kind.POINTWISE, op=op) for k, op in enumerate(operations)
    ]
    left, right = (Matrix(name, "bfloat16", depth, 1, 0) for name in "ab")
    last = epilogue[-1].name
    return Product(
        node, rows, columns, depth, left, right, None, tuple(epilogue), {}, (last,), {}
    )  # fmt: skip


@pytest.mark.parametrize("case", MEASURED)
def test_choice_is_that_of_the_measured_times(case) -> None:
    rows, columns, depth, operations, read, own, library, elementwise = case
    product = product_of(rows, columns, depth, operations)
    tensors = [product.node] * (2 + read)
    assert epilogue_pays(product, tensors, HOPPER) is (own < library + elementwise)
    assert epilogue_pays(product, tensors, AMPERE)
    size = 2 * rows * columns
    assert own_time(product, size * (1 + read), HOPPER) == pytest.approx(
        own * 1e-6, rel=0.08, abs=2e-6
    )
    assert library_time(product, size) == pytest.approx(library * 1e-6, rel=0.08, abs=2e-6)


def test_nearly_equal_times_are_for_the_library() -> None:
    # One kernel took 130 us in a profile of a layer of OLMo 2, the library's two about 112.
    product = product_of(2048, 8192, 2048, SILU)
    size = 2 * product.rows * product.columns
    assert not epilogue_pays(product, [product.node] * 3, HOPPER)
    assert own_time(product, 2 * size, HOPPER) == pytest.approx(130e-6, rel=0.05)


def test_bytes_bound_both_for_a_short_sum() -> None:
    product = product_of(1 << 17, 512, 64, GELU)
    size = 2 * product.rows * product.columns
    assert library_time(product, size) > size / 3e12
    assert epilogue_pays(product, [product.node] * 2, HOPPER)


@pytest.mark.parametrize(
    ("body", "rows", "depth", "target", "kernel"),
    [
        (ACTIVATION, 4096, 512, HOPPER, True),
        (GATE, 4096, 512, HOPPER, True),
        (GATE, 1024, 3072, HOPPER, False),  # the library's product saves more than the epilogue
        (GATE, 1024, 3072, AMPERE, True),
        (ACTIVATION, 1024, 2048, HOPPER, False),
        (ACTIVATION, 256, 4096, HOPPER, True),  # the bytes of the weight bound both
    ],
)
def test_epilogue_pays_by_depth_and_bytes(
    tmp_path: Path, body: str, rows: int, depth: int, target: Target, kernel: bool
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TEXT.format(body=body, rows=rows, depth=depth))
    subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=target)
    made = make_candidate(subject, Options())
    assert (made is not None and made.kernels[0].startswith("linear")) is kernel
