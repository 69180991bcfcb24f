"""Elementwise kernels read operands in another order of memory through shared memory."""

from __future__ import annotations

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.streaming import cuda_staged

BODIES = {
    "one transposed operand": (
        "torch.sigmoid(x.transpose(1, 2)) * y.view(3, 70, 41) + 1", "3, 41, 70"
    ),
    "vectors": ("torch.sigmoid(x.transpose(1, 2)) * y.view(3, 70, 88) + 1", "3, 88, 70"),
    "two transposed operands": (
        "(x.transpose(1, 2) + y.transpose(1, 2)).exp() * y.view(3, 70, 88)", "3, 88, 70"
    ),
    "images": ("torch.sigmoid(x.permute(0, 2, 3, 1)) * y.view(2, 5, 15, 72) + 1", "2, 72, 5, 15"),
    "order of a middle dimension": (
        "torch.sigmoid(x.permute(3, 1, 2, 0)) * y.view(17, 3, 5, 40) + 1", "40, 3, 5, 17"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", BODIES)
def test_operands_in_another_order_are_read_through_shared_memory(
    tmp_path, monkeypatch, name, dtype
):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    body, shape = BODIES[name]
    text = reductions.text_of(f"return {body}", shape, dtype)
    candidate = emulated.check(tmp_path, monkeypatch, text, Options())
    (kernel,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    assert "_tile0[WIDTH * STEP]" in kernel
