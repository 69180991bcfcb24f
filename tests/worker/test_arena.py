"""Tests of arenas: page faults, release of memory, comparison and strides."""

import os
import resource

import pytest
import torch

from cuagent.worker import Arena, layout_of
from cuagent.worker.memory.arena import same_bytes

MIB = 1 << 20


def test_attached_arena_has_all_pages_mapped() -> None:
    """Page faults would make the calls of a fresh process slower than those of an older one."""
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


def test_arena_allocates_new_memory_after_give_back() -> None:
    arena = Arena.create(layout_of([torch.empty(1000)]), 2, "cpu")
    arena.tensors(1)[0].fill_(7.0)
    arena.give_back()
    assert not arena.tensors(1)[0].any()
    assert arena.guards_hold()
    arena.close()
    with pytest.raises(AssertionError, match="closed"):
        arena.tensors()


@pytest.mark.parametrize("size", [4096, 4099])
def test_same_bytes_compares_the_last_byte(size: int) -> None:
    first = torch.arange(size).to(torch.uint8)
    second = first.clone()
    assert same_bytes(first, second)
    second[-1] += 1
    assert not same_bytes(first, second)
    assert same_bytes(first[:-1], second[:-1])


def test_arena_keeps_expanded_strides() -> None:
    own = [torch.arange(3.0).expand(4, 3), torch.arange(6.0).view(2, 3).t()]
    arena = Arena.create(layout_of(own), 1, "cpu")
    arena.write(own)
    lent = arena.tensors()
    assert [x.stride() for x in lent] == [(0, 1), (1, 3)]
    assert all(map(torch.equal, lent, own))
    arena.close()


def test_overlapping_elements_are_stored_contiguously() -> None:
    windows = torch.arange(6.0).unfold(0, 3, 1)
    arena = Arena.create(layout_of([windows]), 1, "cpu")
    arena.write([windows])
    assert arena.tensors()[0].is_contiguous()
    assert torch.equal(arena.tensors()[0], windows)
    arena.close()
