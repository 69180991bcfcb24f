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


@pytest.mark.parametrize("length", [2200, 5000])
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name, length):
    made = make(TASK.format(body=BODIES[name], length=length), "Model")
    assert_agrees(made)
    assert "aten.topk" not in made.candidate.files["model_new.py"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_half_precision_is_selected_from(make, dtype):
    text = TASK.format(body="return x.topk(20)[0]", length=2000)
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


@pytest.mark.parametrize("body", ["values and indices", "smallest"])
def test_equal_elements_and_nan_are_selected_as_torch_selects_them(make, body):
    made = make(TASK.format(body=BODIES[body], length=3000), "Model")
    torch.manual_seed(0)
    x = torch.randint(-40, 40, (5, 3000)).float()
    x[1] = 0.0
    x[2, 100:110] = -0.0
    x[3, ::7] = torch.nan
    x[4, 50:] = torch.nan
    with torch.no_grad():
        expected, got = made.reference().eval()(x), made.cls().eval()(x)
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("body", ["v, i = x.topk(20, sorted=False)", "v, i = x.topk(20)"])
def test_an_unsorted_selection_and_one_of_a_short_row_are_left_to_torch(make, body):
    length = 5000 if "sorted" in body else 1000
    text = TASK.format(body=f"{body}; return (v * 2).exp(), i", length=length)
    assert "aten.topk" in make(text, "Model").candidate.files["model_new.py"]
