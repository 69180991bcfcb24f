"""Embedding lookups and indexing along one dimension, fused into the kernels that read them."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.streaming.cpp_text import PREFETCHED_TABLE

pytestmark = pytest.mark.slow

BODIES = {
    "embedding and position": "return self.norm(self.tokens(ids) + self.places)",
    "scaled embedding": "return self.tokens(ids) * 3 + 1",
    "mean of an embedding": "return self.tokens(ids).mean(1) * 2",
    "two embeddings": "return (self.tokens(ids) * self.others(ids)).sum(-1)",
    "joined embeddings": "return torch.cat([self.tokens(ids), self.others(ids)], -1).relu() + 1",
    "stacked embeddings": (
        "return torch.stack([self.tokens(ids), self.others(ids)], 1).tanh() * 2"
    ),
    "bags": "return F.embedding_bag(ids, self.others.weight) * 2",
    "summed bags": "return self.norm(F.embedding_bag(ids, self.tokens.weight, mode='sum'))",
    "rows": "return x[ids].exp() * 2",
    "indices as numbers": "return x[ids].exp() * (ids.float()[..., None, None] + 1)",
    "columns": "return x[:, ids[0]] * 2 + 1",
    "the last dimension": "return torch.index_select(x, 2, ids[0] % 4).tanh() + 1",
    "softmax of rows": "return torch.softmax(torch.index_select(x, 0, ids[0]) * 2, -1)",
    "negative indices": "return (x[ids - 7] * 2).amax(-1)",
    "a sum along the lookup": "return torch.cumsum(self.tokens(ids) * 2, 1) + 1",
    "a lookup that torch reads too": "e = self.tokens(ids); return e, e * 2 + 1",
    "a lookup of what a kernel computes": "return (x * 2).tanh()[ids] + 1",
}


def text_of(name: str, dtype: str = "float32", ids: str = "torch.randint(0, 7, (4, 7))") -> str:
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 20)
        self.others = nn.Embedding(9, 20, padding_idx=0)
        self.places = nn.Parameter(torch.randn(7, 20))
        self.norm = nn.LayerNorm(20)
        self.to(torch.{dtype})
    def forward(self, ids, x):
        {BODIES[name]}
def get_inputs(): return [{ids}, torch.randn(7, 9, 20).to(torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    assert_agrees(make(text_of(name), "Model"))


@pytest.mark.parametrize("name", ["embedding and position", "rows", "joined embeddings"])
def test_candidate_agrees_with_reference_in_half_precision(make, name):
    assert_agrees(make(text_of(name, "bfloat16"), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(vector=False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name, dtype, options):
    assert_agrees(make(text_of(name, dtype), "Model", options, "cuda"), "cuda")


@pytest.mark.parametrize("name", ["bags", "summed bags"])
def test_bags_of_one_size_are_summed_by_a_kernel(make, name):
    forward = make(text_of(name), "Model").candidate.files["model_new.py"].split("def _fits")[1]
    assert "F.embedding" not in forward
    assert "aten.embedding" not in forward


@pytest.mark.parametrize("name", ["embedding and position", "joined embeddings"])
def test_lookup_is_part_of_its_reader(make, name):
    made = make(text_of(name), "Model")
    assert len(made.candidate.kernels) == 1
    forward = made.candidate.files["model_new.py"].split("def _fits")[1]
    assert "embedding(" not in forward
    assert forward.count("torch.empty") == 1


@pytest.mark.parametrize(("name", "wraps"), [("scaled embedding", False), ("rows", True)])
def test_index_out_of_range_gives_nan_and_reads_nothing(make, name, wraps):
    made = make(text_of(name), "Model")
    ids, x = made.inputs()
    ids[0, 0], ids[1, 2], ids[3, 6] = 7, 1 << 60, -1
    with torch.no_grad():
        result = made.cls().eval()(ids, x)
    wrong = result.isnan().flatten(2).all(-1)
    assert wrong[0, 0]
    assert wrong[1, 2]
    assert bool(wrong[3, 6]) is not wraps
    assert int(wrong.sum()) == (2 if wraps else 3)


def test_bags_of_a_part_of_the_indices_are_read_in_place(make):
    text = text_of("bags").replace(
        BODIES["bags"],
        "return F.embedding_bag(ids.view(2, 2, 7)[:, 1], self.others.weight, mode='sum') * 2",
    )
    made = make(text, "Model")
    assert "clone" not in made.candidate.files["model_new.py"].split("class ModelNew")[1]
    assert_agrees(made)


LARGE = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(3000, {width}).to(torch.{dtype}))
    def forward(self, ids):
        return {body}
def get_inputs(): return [torch.randint(0, 3000, (9, 13))]
def get_init_inputs(): return []
"""
LARGE_BODIES = {
    "bags": "F.embedding_bag(ids, self.table, mode='sum')",
    "lookups": "F.embedding(ids, self.table).tanh() * 2",
    "rows from the end": "(self.table[ids - 3000] * 2).sum(-1)",
    "lookups of every second index": "F.embedding(ids[:, ::2], self.table) * 2 + 1",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [48, 200])
@pytest.mark.parametrize("name", LARGE_BODIES)
def test_slices_of_a_large_table_are_fetched_in_advance(make, name, width, dtype):
    made = make(LARGE.format(width=width, dtype=dtype, body=LARGE_BODIES[name]), "Model")
    is_large = 3000 * width * (4 if dtype == "float32" else 2) >= PREFETCHED_TABLE
    texts = [text for path, text in made.candidate.files.items() if path.endswith(".cpp")]
    assert any("prefetch<" in text for text in texts) == is_large
    new = assert_agrees(made)
    (ids,) = made.inputs()
    ids[-1, -1] = 9000
    with torch.no_grad():
        assert new(ids).isnan().any()


def test_products_of_fields_are_summed_without_a_stack_and_without_copies_of_rows(make):
    text = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(50, 8) for _ in range(5))
    def forward(self, x):
        v = [table(x) for table in self.tables]
        pairs = [v[j][:, i] * v[i][:, j] for i in range(5) for j in range(i + 1, 5)]
        return torch.stack(pairs, dim=1).sum((1, 2)).sigmoid(), torch.stack(pairs, 0).sum(0)
def get_inputs(): return [torch.randint(0, 50, (40, 5))]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    assert_agrees(made)
    forward = made.candidate.files["model_new.py"].split("class ModelNew")[1]
    assert "stack.default" not in forward
    assert "F.embedding" not in forward
