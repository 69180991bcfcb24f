"""The largest or smallest elements of rows, in order (topk on a CPU)."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {body}
def get_inputs(): return [torch.stack([torch.randperm({length}) for _ in range(5)]).float() - 40]
def get_init_inputs(): return []
"""
BODIES = {
    "values and indices": "v, i = x.topk(20); return v, i",
    "smallest": "v, i = x.topk(20, largest=False); return v, i",
    "of computed elements": "v, i = (x * 0.5 + 1).topk(30); return v * 2, i",
    "values alone": "return x.topk(33).values.softmax(-1)",
    "gathered by the indices": "i = (x * 2).topk(12).indices; return x.gather(-1, i).sin() * 3",
}  # fmt: skip


@pytest.mark.parametrize("length", [70, 1000, 5000])
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name, length):
    made = make(TASK.format(body=BODIES[name], length=length), "Model")
    assert_agrees(made)
    assert "aten.topk" not in made.candidate.files["model_new.py"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_half_precision_is_selected_from(make, dtype):
    text = TASK.format(body="v, i = x.topk(20); return v, i", length=200)
    made = make(text.replace(".float() - 40", f".to(torch.{dtype})"), "Model")
    assert_agrees(made)
    assert "aten.topk" not in made.candidate.files["model_new.py"]


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_sorted_rows_are_selected_from(make, order):
    made = make(TASK.format(body=BODIES["values and indices"], length=3000), "Model")
    row = torch.arange(3000.0) if order == "ascending" else torch.arange(3000.0).flip(0)
    x = row.expand(5, 3000).contiguous()
    with torch.no_grad():
        (expected, places), (got, own) = x.topk(20), made.cls().eval()(x)
    assert torch.equal(got, expected)
    assert torch.equal(own, places)


def test_nan_is_the_largest_and_the_first_of_equal_elements_is_selected(make):
    made = make(TASK.format(body=BODIES["values and indices"], length=300), "Model")
    x = torch.zeros(5, 300)
    x[:, 200] = torch.nan
    x[:, 100:110] = -0.0
    x[:, 250] = -torch.nan
    with torch.no_grad():
        values, places = made.cls().eval()(x)
    assert values[:, :2].isnan().all()
    assert places[0].tolist() == [200, 250, *range(18)]


def test_nan_is_no_smallest_element_while_others_are_left(make):
    made = make(TASK.format(body=BODIES["smallest"], length=300), "Model")
    x = torch.arange(300.0).repeat(5, 1)
    x[:, :10] = torch.nan
    x[:, 20] = -torch.inf
    with torch.no_grad():
        values, places = made.cls().eval()(x)
    assert places[0, :2].tolist() == [20, 10]
    assert not values.isnan().any()


def test_an_unsorted_selection_is_left_to_torch(make):
    body = "v, i = x.topk(20, sorted=False); return (v * 2).exp(), i"
    made = make(TASK.format(body=body, length=1000), "Model")
    assert "aten.topk" in made.candidate.files["model_new.py"]
