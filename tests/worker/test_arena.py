"""Memory that is lent: what the first touch of it costs in the borrower."""

import os
import resource

import torch

from cuagent.worker import Arena, layout_of

MIB = 1 << 20


def test_no_page_is_missing_in_an_arena_that_was_just_attached() -> None:
    """Else the calls of a fresh process are slower than those of one that was here before."""
    lent = Arena.create(layout_of([torch.empty(2 * MIB)]), 4, "cpu")
    lent.poison(0xFF)
    about, descriptors = lent.describe()
    attached = Arena.attach(about, tuple(os.dup(number) for number in descriptors))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for slot in range(attached.count):
        attached.tensors(slot)[0].fill_(1.0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 4 * 8 * MIB // resource.getpagesize() // 10
    attached.close()
    lent.close()
