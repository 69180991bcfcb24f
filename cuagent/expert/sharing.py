"""Use one generated kernel for several groups whose kernels differ in names only.

A network repeats its blocks, so most of its kernels differ only in the names of their tensors. Each
different kernel is compiled and measured once.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cuagent.expert.kernel import KernelCall
from cuagent.expert.method import TritonCall
from cuagent.expert.streaming.expressions import identifier

WORD = re.compile(r"(?<!\.)\b[A-Za-z_]\w*(?!\w)(?!\s*\()(?!<)")
"""Matches an identifier that is no member (`blockIdx.x`), and not followed by `(` or, without a
space, `<`: a node may have the same name as a function.
"""


TRITON_WORD = re.compile(r"\b([A-Za-z_]\w*)_(?:in|out|v|\d+)\b")
"""Matches a parameter or variable of a Triton kernel; group 1 may be the name of a tensor."""


def shared(call: KernelCall, known: dict[str, KernelCall]) -> KernelCall:
    """Return `call`, with the file of an equal kernel if `known` has one; else add it to `known`.

    `known` maps the text of a kernel, without the names of its tensors, to its first call.
    """
    key = text_without_names(call)
    first = known.setdefault(key, call)
    return replace(call, name=first.name, path=first.path, text=first.text)


def shared_triton(call: TritonCall, known: dict[str, TritonCall]) -> TritonCall:
    """Return `call`, with the text of an equal Triton kernel if `known` has one; else add it to
    `known`.

    `known` is as in `shared`. Triton takes seconds to compile each different text.
    """
    first = known.setdefault(text_without_names(call), call)
    return replace(call, name=first.name, text=first.text)


def text_without_names(call: KernelCall | TritonCall) -> str:
    """Return a kernel's text without comments, with numbers in place of the names of its
    tensors.
    """
    nodes = call.group.nodes if isinstance(call, KernelCall) else call.step.nodes
    names = {identifier(n) for node in nodes for n in (node.name, *node.inputs)}
    names |= {identifier(name) for name in call.tensors_read}
    numbers: dict[str, str] = {}
    lines = [line for line in call.text.splitlines() if not line.startswith("//")]
    text = re.sub(rf"\b{call.name}(?=\w*\b)", "kernel", "\n".join(lines))
    if isinstance(call, TritonCall):
        return TRITON_WORD.sub(lambda match: _numbered(match[0], names & {match[1]}, numbers), text)
    return WORD.sub(lambda match: _numbered(match[0], names, numbers), text)


def _numbered(word: str, names: set[str], numbers: dict[str, str]) -> str:
    """Return `word` with the tensor's name at its start replaced by `tensor0`, `tensor1`, ...

    `numbers` maps each name to its replacement, in order of first use. A word that starts with none
    of `names` is returned unchanged.
    """
    name = _name_in(word, names)
    if not name:
        return word
    return numbers.setdefault(name, f"tensor{len(numbers)}") + word[len(name) :]


def _name_in(word: str, names: set[str]) -> str:
    """Return the longest of `names` that `word` equals or begins with (before "_"); "" without
    one.
    """
    parts = word.split("_")
    starts = ("_".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((start for start in starts if start in names), "")
