"""Softmax of large products: their maximum is subtracted from products that are rounded, too."""

from __future__ import annotations

import pytest
import torch
from shares import slow_except
from test_reductions import text_of  # type: ignore[import-not-found]

BODIES = {
    "softmax": "return torch.softmax(x * 0.1767766952966369, -1)",
    "softmax of a product of tensors": "return torch.softmax(x * y, -1)",
    "softmax over another dimension": "return torch.softmax(x * 0.3, 1)",
    "log-softmax": "return torch.log_softmax(x * 0.1767766952966369, -1)",
    "logsumexp": "return torch.logsumexp(x * 0.1767766952966369, -1)",
    "difference to the maximum": "h = x * 0.3; return torch.exp(h - h.amax(-1, keepdim=True))",
}


@pytest.mark.parametrize("shape", ["64, 70", "8, 4000", "4, 8, 64"])
@pytest.mark.parametrize("name", slow_except(BODIES, "softmax", "logsumexp"))
def test_candidate_of_large_numbers_agrees_with_reference(make, name, shape):
    made = make(text_of(BODIES[name], shape), "Model")
    torch.manual_seed(0)
    inputs = [t * 2.0**35 for t in made.inputs()]
    with torch.no_grad():
        torch.testing.assert_close(made.cls().eval()(*inputs), made.reference()(*inputs))


@pytest.mark.parametrize(
    "name", slow_except(BODIES, "softmax", "log-softmax", "difference to the maximum")
)
def test_kernel_for_a_gpu_does_not_join_product_and_difference(generate, name):
    candidate = generate(text_of(BODIES[name], "64, 1024"))
    (kernel,) = (t for f, t in candidate.files.items() if f.endswith("_kernel.cu"))
    assert "difference(" in kernel
