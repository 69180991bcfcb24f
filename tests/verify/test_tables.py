"""Lengths of the tables that integer inputs index."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cuagent.verify.trace.tables import tables


def test_index_is_recognized_through_views_and_casts() -> None:
    table, x = torch.randn(50, 4), torch.randn(6, 30)
    index = torch.randint(0, 20, (6,))
    for run, size in (
        (lambda: F.embedding(index, table), 50),
        (lambda: table[index.to(torch.int32).long()], 50),
        (lambda: x.gather(1, index[:, None]), 30),
        (lambda: F.cross_entropy(x, index), 30),
        (lambda: F.one_hot(index, 25), 25),
        (lambda: (table[index], x.gather(1, index.view(6, 1))), 30),
        (lambda: table[index + 1], 0),
    ):
        assert tables(run, [x, index]) == [0, size]
