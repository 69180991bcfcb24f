"""Chains of assignments to slices, and the views around them, are one pass of a kernel."""

from __future__ import annotations

import re

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

TEXT = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn(4, 6, 8, 10), torch.randn(4, 6, 8, 12)]
def get_init_inputs(): return []
"""
CHAINS = {
    "ranges of several dimensions": """
        z = y.new_zeros(4, 7, 8, 15)
        z[:, :-1, :, 3:] = y
        z[:, -1, :, 5:] = x[:, 2] * 3
        z[:, 1:, :, :3] = y[..., 4:7].exp()
        z[:, 0, 1:6, 1:6] = x[:, 0, :5, 2:7]
        return z * 2 + 1""",
    "a part of itself": """
        z = x * 2
        z[:, 1:3, :, 4:] = torch.where(x[:, :2, :, 4:] > 0, 5.0, z[:, 1:3, :, 4:])
        return z.tanh()""",
    "a permuted view": """
        z = (x * 2).exp()
        v = z.transpose(1, 2)
        v[:, 2:5, :, :7] = torch.full_like(v[:, 2:5, :, :7], 3.0).where(
            y.transpose(1, 2)[:, :3, :, :7] > 0, v[:, 2:5, :, :7])
        v[:, -3:, :, 2:] = v[:, -3:, :, 2:] * y.transpose(1, 2)[:, :3, :, :8]
        return z.view(4, 3, 2, 8, 10) + 1""",
    "one slice of a computed value": """
        z = x + 1
        z[:, 3] = (y[:, 2, :, :10] * 2).sigmoid()
        z[..., 4] = y[..., 0] * z[..., 4]
        return z * 3""",
    "an assigned number": """
        z = x + 1
        z[:, 1:3, 2] = 7.0
        return z * 3""",
}
LEFT = re.compile(r"aten\.(slice_scatter|select_scatter|copy|full_like|fill)\b|\.reshape\(")


@pytest.mark.parametrize("name", CHAINS)
def test_chain_of_assignments_is_one_kernel(generate, name):
    made = generate(TEXT.format(body=CHAINS[name]))
    assert made is not None
    assert made.launches == 1
    assert not LEFT.search(made.files["model_new.py"].split("def _fits")[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_chain_of_assignments_agrees_with_reference(make, generate, interpreted, name):
    text = TEXT.format(body=CHAINS[name])
    assert_agrees(make(text, "Model"))
    interpreted(generate(text))


VIEWS = {
    "a view of a permuted result": """
        z = torch.matmul(x, y[..., :10].mT)
        z = z.transpose(1, 2) + z.transpose(1, 2).exp()
        return torch.softmax(z.transpose(1, 2).reshape(24, 64), -1)""",
    "padding of a reshaped copy": """
        z = F.pad(x.softmax(-1).transpose(1, 2).contiguous().view(32, 6, 10), (0, 3))
        return torch.matmul(z, z.mT)""",
    "windows of memory": """
        z = torch.matmul(x, y[..., :10].mT).exp()
        return z.as_strided((4, 5, 16, 8), (384, 64, 8, 1)).softmax(-1)""",
    "an outer product": """
        z = torch.einsum('bcxd,bcyd->bcxy', x[..., :1].exp(), y[..., :1] * 3)
        return z.softmax(-1)""",
}
SELECTED = {
    "indices that a range counts": "return x.index_select(2, torch.arange(1, 6)).exp() * 2",
    "the first indices": "return (x[:, :, torch.arange(4)] @ y[..., :10].mT).softmax(-1)",
}
COPIES = re.compile(r"aten\.(clone|as_strided|pad)\b|\.reshape\(|torch\.einsum")


@pytest.mark.parametrize("name", VIEWS)
def test_view_needs_no_copy_of_torch(generate, name):
    made = generate(TEXT.format(body=VIEWS[name]))
    assert made is not None
    text = made.files["model_new.py"].split("def _fits")[1]
    assert not COPIES.search(text)
    assert ("matmul" in text) is (name != "an outer product")


@pytest.mark.parametrize("name", SELECTED)
def test_adjacent_indices_are_a_slice(generate, name):
    made = generate(TEXT.format(body=f"x = x.exp(); {SELECTED[name]}"))
    text = made.files["model_new.py"].split("def _fits")[1]
    assert not re.search(r"arange|index_select", text)


def test_returned_slice_by_indices_is_no_view_of_the_input(generate):
    body = "return x.exp() * 2 + 1, x[:, torch.arange(3)].view(4, 3, 80)"
    text = generate(TEXT.format(body=body)).files["model_new.py"]
    assert "arange" in text


def test_masked_rows_of_a_lookup_are_one_kernel(generate):
    """torch copies the rows twice before it fills some of them."""
    body = """
        i = y[0, 0, 0].long().abs().clamp(max=3)
        z = x[i].masked_fill((i > 2)[:, None, None, None], 0.0)
        return torch.matmul(z, z.mT)"""
    text = generate(TEXT.format(body=body)).files["model_new.py"].split("def _fits")[1]
    assert "aten.masked_fill" not in text


@pytest.mark.parametrize(
    ("value", "kernels"),
    [("x.masked_fill(y[..., :1] > 0, 0.0)", 1), ("(x * 2).exp()", 2), ("torch.cumsum(x, 0)", 2)],
)
def test_parts_of_a_cheap_value_are_computed_where_they_are_read(generate, value, kernels):
    body = f"a, b = ({value}).chunk(2, -1); return F.silu(a) * b"
    made = generate(TEXT.format(body=body))
    assert made is not None
    assert len(made.kernels) == kernels


@pytest.mark.slow
def test_parts_of_a_cheap_value_agree_with_reference(make):
    body = "a, b = (x.masked_fill(y[..., :1] > 0, 0.0) + y[0, 0, 0, :10]).split([4, 6], -1)"
    assert_agrees(make(TEXT.format(body=f"{body}; return F.silu(a) * b[..., 1:5]"), "Model"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTED)
def test_slice_agrees_with_reference(make, interpreted, generate, name):
    text = TEXT.format(body=f"z = x.exp(); {SELECTED[name]}")
    assert_agrees(make(text, "Model"))
    interpreted(generate(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_view_agrees_with_reference(make, generate, interpreted, name):
    text = TEXT.format(body=VIEWS[name])
    assert_agrees(make(text, "Model"))
    interpreted(generate(text))
