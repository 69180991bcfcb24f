"""Find candidate tasks that resemble a KernelBench problem: similar text, or equal operators and
shapes.

The problems are read from a checkout that the user names. Only constants and `get_inputs` of a
problem's file are run, on the meta device, and only if they call nothing but torch's functions that
make tensors. A problem that needs more is compared by its text only.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuagent.bench.problems import Problem, kernelbench
from cuagent.synth.labelled import tail
from cuagent.synth.source import labels, model_tokens, parse, similarity

MOST_SIMILAR = 0.9
"""Largest accepted similarity of the syntax trees of Model, as in CUDA Agent (section 6 of the
paper)."""
ALL_LEVELS = (1, 2, 3, 4)
MAKES_TENSORS = re.compile(r"torch\.(rand|randn|randint|ones|zeros|full|arange|randperm|tril|triu)")
METHODS = frozenset(["bool", "contiguous", "float", "half", "long", "softmax", "to", "transpose"])
BUILT_IN = frozenset(["int", "len", "max", "min", "range"])


@dataclass(frozen=True)
class Known:
    """A KernelBench problem, reduced to the parts that are compared with candidates."""

    name: str
    tokens: tuple[str, ...]
    operators: tuple[str, ...]
    shapes: tuple[str, ...]
    """Shapes of the problem's inputs; () if unknown."""


def read_problems(root: Path) -> list[Known]:
    """Return the problems of all levels in the checkout. Raises BenchError."""
    known = []
    for problem in _problems(root):
        code = problem.path.read_text(encoding="utf-8")
        try:
            parsed = parse(code)
        except ValueError:
            continue
        operators = signature(labels(parsed))
        tokens = tuple(model_tokens(parsed))
        known.append(Known(problem.name, tokens, operators, input_shapes(code)))
    return known


def digest(root: Path) -> str:
    """Return a digest of the text of all problems in the checkout. Raises BenchError."""
    found = hashlib.sha256()
    for problem in _problems(root):
        found.update(problem.name.encode() + problem.path.read_bytes())
    return found.hexdigest()[:16]


def _problems(root: Path) -> list[Problem]:
    base = root / "KernelBench" if (root / "KernelBench").is_dir() else root
    levels = [n for n in ALL_LEVELS if (base / f"level{n}").is_dir()] or [1]
    return kernelbench(root, levels)


def collision(code: str, known: Sequence[Known], shapes: tuple[str, ...] = ()) -> str:
    """Return text that names the KernelBench problem which the task resembles, and the kind of
    resemblance; "" for none.

    `shapes`: shapes of the task's inputs; if empty, only texts are compared.
    """
    if not known:
        return ""
    parsed = parse(code)
    tokens, operators = tuple(model_tokens(parsed)), signature(labels(parsed))
    for problem in known:
        if shapes and (operators, shapes) == (problem.operators, problem.shapes):
            return f"{problem.name}: equal operators and shapes"
        if similarity(tokens, problem.tokens) > MOST_SIMILAR:
            return f"{problem.name}: similar text"
    return ""


def sizes_of(shapes: Sequence[str]) -> tuple[str, ...]:
    """Convert shapes such as `float32[8,64]` to sizes without dtype (`8,64`), the form that
    `collision` compares."""
    return tuple(shape.partition("[")[2].rstrip("]") for shape in shapes)


def signature(ops: Sequence[str]) -> tuple[str, ...]:
    """Return the operators sorted and in one spelling, so that `nn.ReLU` and `torch.relu` are
    equal."""
    return tuple(sorted(Counter(tail(name).lower() for name in ops).elements()))


def input_shapes(code: str) -> tuple[str, ...]:
    """Return the shapes of the tensors of `get_inputs`; () if they cannot be read."""
    import torch

    kept = [node for node in ast.parse(code).body if _draws_inputs(node)]
    names: dict[str, Any] = {"torch": torch}
    try:
        with torch.device("meta"):
            exec(compile(ast.Module(kept, []), "<problem>", "exec"), names)
            drawn = names["get_inputs"]()
    except Exception:  # noqa: BLE001 - the boundary: a foreign file
        return ()
    tensors = [value for value in drawn if isinstance(value, torch.Tensor)]
    return tuple(",".join(map(str, tensor.shape)) for tensor in tensors)


def _draws_inputs(node: ast.stmt) -> bool:
    """Return True if a top-level statement may be run: a constant or `get_inputs` that only makes
    tensors."""
    match node:
        case ast.Assign() | ast.AnnAssign() | ast.FunctionDef(name="get_inputs", decorator_list=[]):
            return all(_makes_tensors(inner) for inner in ast.walk(node))
    return False


def _makes_tensors(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.While() | ast.Lambda():
            return False
        case ast.Attribute(attr=name) if name.startswith("_"):
            return False
        case ast.Call(func=ast.Name(id=name)):
            return name in BUILT_IN
        case ast.Call(func=ast.Attribute(attr=name) as function):
            made = MAKES_TENSORS.fullmatch(ast.unparse(function))
            return bool(made) or name in METHODS
        case ast.Call():
            return False
    return True
