"""Parse the resource report of ptxas (`--resource-usage`): registers, shared memory, spills."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re

from cuagent.build.result import KernelResources

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")

LONGEST_NAME = 1_000
"""Largest number of characters of a name to demangle. The demangler recurses over names, which a
source can make arbitrarily long."""


def resources(output: str) -> tuple[KernelResources, ...]:
    """Return the resources of each CUDA kernel in ptxas's output, in its order; () without a
    report."""
    found = []
    name, stack, spills = "", 0, 0
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            name, stack, spills = match[1], 0, 0
        elif match := _FRAME.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif name and (match := _USED.search(line)):
            shared = _SHARED.search(match[2])
            found.append(
                KernelResources(
                    name=short_name(name),
                    registers=int(match[1]),
                    shared_bytes=int(shared[1]) if shared else 0,
                    spill_bytes=spills,
                    stack_bytes=stack,
                )
            )
            name = ""
    return tuple(found)


def short_name(mangled: str) -> str:
    """Demangle a name and drop return type and parameters: `_Z4axpyIfEvPT_f` -> `axpy<float>`."""
    plain = _demangle(mangled) if len(mangled) <= LONGEST_NAME else mangled[:LONGEST_NAME]
    depth = 0
    for at, sign in enumerate(plain):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth == 0 and not plain.startswith("(anonymous", at):
            plain = plain[:at]
            break
    return plain.replace("(anonymous namespace)::", "").removeprefix("void ")


def _demangle(mangled: str) -> str:
    library = _runtime()
    if library is None:
        return mangled
    status = ctypes.c_int()
    text = library.__cxa_demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not text:
        return mangled
    try:
        return ctypes.string_at(text).decode()
    finally:
        library.free(ctypes.c_void_p(text))


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    """Load libstdc++, whose demangler matches the compiler; None if it is missing."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ctypes.c_void_p
    return library
