"""Sums of products that `einsum` names by letters: products, sums of rows, and scalings."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

EQUATIONS = {
    "left operand transposed": "'bhsd,bhse->bhde', q, k",
    "both operands transposed": "'bhsd,bhes->bhde', q, k.mT.contiguous()",
    "a row by a vector": "'bhsd,bhd->bhs', q, v",
    "a scaled product": "'bhsd,bhde,bhs->bhse', q, m, z",
    "a scale in the middle": "'bhsd,bhs,bhde->bhse', q, z, m",
    "products of elements": "'bhsd,bhsd->bhsd', q, k",
    "dot products": "'bhsd,bhsd->bhs', q, k",
    "an outer product": "'bhs,bhd->bhsd', z, v",
    "a scaling": "'bhs,bhsd->bhsd', z, q",
    "a sum over two letters": "'bhsd,bhsd->bh', q, k",
    "an operand in another order": "'bhsd,bhds->bhs', q, k.mT.contiguous()",
    "experts": "'td,edf->etf', q[0, 0], m[0]",
    "a mix of experts": "'te,etd->td', z[0].mT, q[0]",
    "a batch of the left operand": "'btd,df->btf', q[0], m[0, 0]",
    "a permuted result": "'bhsd,bhde->bshe', q, m",
    "a broadcast letter": "'bhsd,bhde->bhse', q, m[:, :1]",
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_candidate_agrees_with_reference(make, name):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, m, v, z):
        return torch.einsum({EQUATIONS[name]}).contiguous().tanh() + q.exp().sum() * 1e-3
def get_inputs():
    q, k = torch.randn(2, 3, 20, 8), torch.randn(2, 3, 20, 8)
    return [q, k, torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 20)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    assert_agrees(made)
    left = "torch.einsum" in made.candidate.files["model_new.py"].split("def _fits")[1]
    stays = ("a permuted result", "a broadcast letter")
    assert left == (name in stays)
