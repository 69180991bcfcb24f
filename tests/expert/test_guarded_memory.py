"""Guard bands show accesses outside of a tensor (`guarded_memory`)."""

from __future__ import annotations

import torch
from guarded_memory import Guards  # type: ignore[import-not-found]


def test_new_tensors_are_nan_and_have_their_shape():
    with Guards().new_tensors():
        x = torch.empty((3, 5), dtype=torch.bfloat16)
        y = torch.empty_like(x)
        z = torch.empty_strided((3, 5), (1, 3), device=x.device)
    assert (x.shape, y.dtype, x.stride()) == ((3, 5), torch.bfloat16, (5, 1))
    assert z.stride() == (1, 3)
    assert all(bool(t.isnan().all()) for t in (x, y, z))


def test_slice_of_new_memory_by_an_offset_is_inside_of_the_tensor():
    with Guards().new_tensors():
        x = torch.empty(2, 6).copy_(torch.arange(12.0).view(2, 6))
    assert torch.equal(x.as_strided((2, 3), (6, 1), 3), x[:, 3:])


def test_write_behind_a_tensor_is_found():
    guards = Guards()
    x = guards.copy(torch.randn(7))
    assert guards.are_intact()
    torch.as_strided(x, (8,), (1,))[7] = 0.0
    assert not guards.are_intact()


def test_write_behind_a_tensor_with_other_strides_is_found():
    guards = Guards()
    x = guards.copy(torch.randn(3, 5).T)
    assert x.stride() == (1, 5)
    torch.as_strided(x, (16,), (1,))[15] = 0.0
    assert not guards.are_intact()
