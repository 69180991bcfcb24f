"""Checks of addresses in Triton's interpreter (`interpreter`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from emulation import InvalidAccess  # type: ignore[import-not-found]
from interpreter import Bounds, Hints  # type: ignore[import-not-found]


def addresses(tensor, indices):
    return np.uint64(tensor.data_ptr()) + 4 * np.array(indices, np.uint64)


def test_address_outside_of_all_tensors_is_found():
    x, y = torch.zeros(40), torch.zeros(7)
    bounds = Bounds()
    bounds.set([x, y, 3])
    bounds.check(addresses(x, range(40)), np.ones(40, bool), 4, "reads")
    joined = np.concatenate([addresses(x, range(40)), addresses(y, range(8))])
    with pytest.raises(InvalidAccess, match="writes 4 bytes at byte 28 of a tensor which has 28"):
        bounds.check(joined, np.ones(48, bool), 4, "writes")


def test_masked_address_is_not_accessed():
    x = torch.zeros(40)
    bounds = Bounds()
    bounds.set([x])
    bounds.check(addresses(x, range(64)), np.arange(64) < 40, 4, "reads")
    with pytest.raises(InvalidAccess, match="24 of 64"):
        bounds.check(addresses(x, range(64)), np.array(True), 4, "reads")


def test_view_ends_at_its_last_element():
    x = torch.zeros(8, 8)
    bounds = Bounds()
    bounds.set([x[1:3, :5]])
    bounds.check(addresses(x, range(8, 21)), np.array(True), 4, "reads")
    with pytest.raises(InvalidAccess):
        bounds.check(addresses(x, [21]), np.array(True), 4, "reads")


def checked(count, *programs):
    hints = Hints()
    for values in programs:
        hints.start_program()
        hints.add(np.array(values), [count])
    hints.check()


def test_hint_may_be_wrong_where_lines_are_not_divisible():
    checked(8, [4, 5, 6, 7, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8])
    checked(8, [0, 1, 4, 5, 8, 9, 12, 13], [16, 17, 20, 21, 24, 25, 28, 29])
    checked(8, [0, 1, 2, 4, 5, 6, 8, 9], [10, 12, 13, 14, 16, 17, 18, 20])


def test_wrong_hint_of_contiguity_is_found():
    with pytest.raises(InvalidAccess, match="2 elements"):
        checked(8, [0, 12, 24, 36], [48, 60, 72, 84])
