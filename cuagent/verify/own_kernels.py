"""Find the kernels that an attempt defines, by name, in its text and in the compiler's report."""

from __future__ import annotations

import re
from collections.abc import Collection

from cuagent.attempt import Attempt
from cuagent.build import Build

_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*\)")
_NAME = re.compile(r"(\w+)\s*\(")
_TRITON = re.compile(r"@triton\.jit\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)")
_EXPOSING_SHARED_MEMORY = ("inline_asm", "gluon")
"""Words in an attempt's text with which a Triton kernel may access shared memory itself."""
_ALLOCATION = re.compile(
    r"\b(?:cuda|cu)(?:Mem)?(?:Malloc|Alloc)|runtime\.malloc|allocator_alloc|raw_alloc"
)
_HEAD = 240
"""Number of characters after `__global__` in which a kernel's name is searched."""


def own_kernels(attempt: Attempt, *, triton: bool = True) -> frozenset[str]:
    """Return the names of the kernels in the attempt's text: CUDA kernels, also those in strings,
    and with `triton` Triton kernels."""
    names: set[str] = set()
    for _, text in attempt.files:
        if triton:
            names.update(match[1] for match in _TRITON.finditer(text))
        for match in re.finditer("__global__", text):
            head = _BOUNDS.sub(" ", text[match.end() : match.end() + _HEAD])
            if found := _NAME.search(head):
                names.add(found[1])
    return frozenset(names)


def kernels_with_barriers(attempt: Attempt, kernels: Collection[str]) -> frozenset[str]:
    """Return those of an attempt's `kernels` that may race in shared memory.

    Triton's language has no shared memory: its compiler places all accesses to it and the barriers
    between them. So its kernels are left out, unless the attempt writes assembly or uses the
    dialect that exposes shared memory.
    """
    texts = [text for _, text in attempt.files]
    if any(word in text for text in texts for word in _EXPOSING_SHARED_MEMORY):
        return frozenset(kernels)
    by_triton = {match[1] for text in texts for match in _TRITON.finditer(text)}
    by_cuda = own_kernels(attempt, triton=False)
    return frozenset(kernels) - (by_triton - by_cuda)


def allocates(attempt: Attempt) -> bool:
    """Return True if the attempt's source calls a GPU allocator other than torch's.

    Uninitialised memory of torch's allocator is filled with two patterns in the verdict's calls.
    """
    return any(_ALLOCATION.search(text) for _, text in attempt.files)


def built_kernels(build: Build) -> frozenset[str]:
    """Return the names of the kernels that the compiler reported. They include names that macros
    make, which the text does not show."""
    names = (resource.name for library in build.libraries for resource in library.resources)
    found = (re.search(r"(\w+)\s*(?:[<(]|$)", name) for name in names)
    return frozenset(match[1] for match in found if match)
