"""Products on a GPU whose operands have no common stride read copies that they share."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear({width}, 64) for _ in range(3))
        self.w = nn.Linear({width}, {width}, bias=False)
    def forward(self, x):
        {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
SCALED = """
        t = x.transpose(0, 1)
        q, k, v = self.q(t) / 8, self.k(t), self.v(t)
        return torch.softmax(q * k, -1) + v"""


def text_of(body: str, shape: str = "2, 512, 256", width: int = 256) -> str:
    return TEXT.format(body=body, shape=shape, width=width)


def forward_of(made) -> str:
    text = made.files["model_new.py"]
    return (
        text[text.index("def forward") : text.index("def _prepare")]
        if "def _prepare" in text
        else text
    )


@pytest.mark.parametrize(("width", "kernel"), [(256, True), (255, False)])
def test_layers_of_permuted_rows_share_one_copy(generate, width, kernel):
    """torch would multiply a batch of 512 matrices of two rows by the scaled weight."""
    made = generate(text_of(SCALED, f"2, 512, {width}", width))
    text = forward_of(made)
    assert "transpose_rows" in text
    assert "linear(x." not in text
    assert text.count("x.permute(1, 0, 2)") == (0 if kernel else 1)
    assert ("transpose_kernel(transpose_rows, x)" in text) is kernel


def test_layer_of_a_batch_of_large_matrices_reads_them_in_place(generate):
    text = forward_of(generate(text_of("return self.w(x * 2 + 1)[:, 0].relu() + x[:, 1:3].sum(1)")))
    assert "_rows" not in text


BATCH = "m = x.view(2, 4, 128, 256).as_strided((2, 3, 192, 256), (131072, 32768, 256, 1))"
PRODUCTS = {
    "with itself": f"{BATCH}; return torch.softmax(torch.matmul(m, m.mT), -1)",
    "with another": f"{BATCH}; return torch.softmax(torch.matmul(m[..., :192], m * 2), -1)",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_batch_of_scattered_matrices_is_copied_once(generate, name):
    text = forward_of(generate(text_of(PRODUCTS[name])))
    assert text.count("_rows = ") == 1
    assert "aten.as_strided" not in text


@pytest.mark.slow
@pytest.mark.parametrize("body", [SCALED, *PRODUCTS.values()])
def test_products_of_copied_rows_agree_with_reference(make, generate, interpreted, body):
    text = text_of(body)
    assert_agrees(make(text, "Model"))
    interpreted(generate(text))
