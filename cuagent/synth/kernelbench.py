"""Find candidates that are like a KernelBench problem: similar text, or equal operators and shapes.

The problems come from a checkout that the user names. Their inputs are drawn on the meta device, in
the calling process; a problem whose `get_inputs` fails there is compared by its text only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuagent.bench.problems import kernelbench
from cuagent.synth.labelled import tail
from cuagent.synth.source import labels, model_tokens, parse, similarity

MOST_SIMILAR = 0.9
"""Largest similarity of the syntax trees of Model, as in CUDA Agent (section 6 of the paper)."""
ALL_LEVELS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Known:
    """One problem of KernelBench, reduced to the parts that are compared."""

    name: str
    tokens: tuple[str, ...]
    operators: tuple[str, ...]
    shapes: tuple[str, ...]
    """Shapes of its inputs; () if they are not known."""


def read_problems(root: Path) -> list[Known]:
    """Return the problems of all levels that the checkout has. Raises BenchError."""
    base = root / "KernelBench" if (root / "KernelBench").is_dir() else root
    levels = [n for n in ALL_LEVELS if (base / f"level{n}").is_dir()] or [1]
    known = []
    for problem in kernelbench(root, levels):
        code = problem.path.read_text(encoding="utf-8")
        try:
            parsed = parse(code)
        except ValueError:
            continue
        operators = signature(labels(parsed))
        tokens = tuple(model_tokens(parsed))
        known.append(Known(problem.name, tokens, operators, input_shapes(code)))
    return known


def collision(code: str, known: Sequence[Known]) -> str:
    """Return text with the problem that the task is like, and the kind of likeness; "" for none."""
    if not known:
        return ""
    parsed = parse(code)
    tokens, operators = tuple(model_tokens(parsed)), signature(labels(parsed))
    shapes: tuple[str, ...] | None = None
    for problem in known:
        if problem.operators == operators and problem.shapes:
            shapes = input_shapes(code) if shapes is None else shapes
            if shapes == problem.shapes:
                return f"{problem.name}: equal operators and shapes"
        if similarity(tokens, problem.tokens) > MOST_SIMILAR and operators == problem.operators:
            return f"{problem.name}: similar text"
    return ""


def signature(ops: Sequence[str]) -> tuple[str, ...]:
    """Return the operators sorted and in one spelling, so that `nn.ReLU` equals `torch.relu`."""
    return tuple(sorted(Counter(tail(name).lower() for name in ops).elements()))


def input_shapes(code: str) -> tuple[str, ...]:
    """Return the shapes of `get_inputs` on the meta device; () if it fails there."""
    import torch

    names: dict[str, Any] = {}
    try:
        with torch.device("meta"):
            exec(compile(code, "<problem>", "exec"), names)
            drawn = names["get_inputs"]()
    except Exception:  # noqa: BLE001 - the process boundary: a foreign module
        return ()
    tensors = [value for value in drawn if isinstance(value, torch.Tensor)]
    return tuple(",".join(map(str, tensor.shape)) for tensor in tensors)
