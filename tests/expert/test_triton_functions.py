"""The functions that generated Triton kernels call are as precise as torch's in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuagent.expert.products.expressions import expression, functions_of

TRITON = SimpleNamespace(jit=lambda function: function)
TL = SimpleNamespace(abs=torch.abs, exp=torch.exp, where=torch.where)
PRECISE = {"tanh": torch.tanh, "softplus": torch.nn.functional.softplus}


def computed(operator: str, x: torch.Tensor) -> torch.Tensor:
    """Return the operator's Triton expression of `x`, with torch's functions for Triton's."""
    text = expression(operator, "float32", ["x"])
    names: dict[str, Any] = {"triton": TRITON, "tl": TL, "x": x}
    exec("\n".join(functions_of([text])), names)
    return eval(text, names)


@pytest.mark.parametrize("operator", PRECISE)
def test_function_has_the_precision_of_float32(operator: str) -> None:
    near = torch.logspace(-30, 1, 50_001)
    x = torch.cat([torch.linspace(-90, 90, 50_001), near, -near])
    right = PRECISE[operator](x.double())
    kept = right.abs() > 1e-37
    error = ((computed(operator, x).double() - right) / right).abs()[kept]
    assert error.max() < 3 * 2**-23


@pytest.mark.parametrize("operator", PRECISE)
def test_function_of_infinite_values_and_nan_is_torchs(operator: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    right = PRECISE[operator](x)
    torch.testing.assert_close(computed(operator, x), right, equal_nan=True)
