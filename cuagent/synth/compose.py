"""Compose candidate tasks at random: a number of operators, their families, shapes and dtypes.

`candidate` depends only on its arguments and the installed torch, so any candidate can be made
again without the others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cuagent.synth.blocks import block_candidate
from cuagent.synth.candidate import FIRST_BATCH, Candidate, drawn
from cuagent.synth.catalogue import FAMILIES, catalogue
from cuagent.synth.dimensions import DIMENSIONS, Dimensions
from cuagent.synth.draft import Draft
from cuagent.synth.loops import loop_candidate
from cuagent.synth.seeds import Seed
from cuagent.synth.source import labels, parse, write_source
from cuagent.synth.templates import BATCH, Unfit

COUNTS = {1: 0.15, 2: 0.25, 3: 0.25, 4: 0.2, 5: 0.15}
"""Default share of tasks by number of operators. CUDA-Agent-Ops-6K has 84 % with two."""
DTYPES = {"float32": 0.7, "bfloat16": 0.15, "float16": 0.15}
TRIES = 24
"""Largest number of operator templates that are tried as the next operator of a task."""
FOLLOWING: dict[str, dict[str, float]] = {
    "convolutions": {"normalisations": 3, "activations": 3, "pooling": 2},
    "normalisations": {"activations": 2, "products": 2, "convolutions": 1.5},
    "products": {"activations": 3, "normalisations": 2, "softmax": 3, "elementwise": 1.5},
    "attention": {"normalisations": 3, "products": 2, "elementwise": 1.5},
    "softmax": {"products": 3, "reductions": 1.5},
    "activations": {"products": 1.5, "convolutions": 1.5, "elementwise": 1.5},
    "pooling": {"convolutions": 2, "products": 1.5},
    "gathers": {"normalisations": 2, "products": 2},
    "recurrent": {"products": 3, "normalisations": 2},
}
"""Factors on the weight of the next operator's family, by the family of the operator before it.
They make the sequences of real modules more frequent and exclude none."""
WHOLE = ("blocks", "loops")
"""Families whose templates make a whole task instead of one operator."""


@dataclass(frozen=True)
class Grammar:
    """Probability distribution of composed tasks: relative shares of operator numbers, operator
    families and dtypes."""

    counts: Mapping[int, float] = field(default_factory=lambda: dict(COUNTS))
    families: Mapping[str, float] = field(default_factory=lambda: dict(FAMILIES))
    dtypes: Mapping[str, float] = field(default_factory=lambda: dict(DTYPES))
    sizes: str = "small"
    """Name of the choices of sizes, a key of `DIMENSIONS`."""

    @property
    def dimensions(self) -> Dimensions:
        return DIMENSIONS[self.sizes]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"counts": {str(n): share for n, share in self.counts.items()}}


def candidate(seed: int, index: int, grammar: Grammar) -> Candidate | None:
    """Return candidate task number `index` for a random seed; None if no operators fit together."""
    draw = random.Random(f"{seed}/{index}")
    wanted = drawn(draw, grammar.counts)
    at = draw.random() * sum(grammar.families.values())
    blocks, loops = (grammar.families.get(name, 0) for name in WHOLE)
    if at < blocks:
        if (found := block_candidate(draw, index, grammar.dimensions)) is not None:
            return found
    elif at < blocks + loops:
        return loop_candidate(draw, index, grammar.dtypes, grammar.dimensions)
    draft = Draft(draw, drawn(draw, grammar.dtypes), grammar.dimensions)
    if not _begin(draft, grammar, wanted):
        return None
    while (left := wanted - _count(draft)) > 0:
        if not _add(draft, grammar, left):
            return None
    outputs = _outputs(draft)
    code = write_source(draft, outputs, FIRST_BATCH)
    ops = tuple(labels(parse(code)))
    return Candidate(index, code, ops, tuple(draft.families), draft.dtype)


def _begin(draft: Draft, grammar: Grammar, wanted: int) -> bool:
    """Draw the first operator and an input that fits it. Return False if `TRIES` tries fail.

    `wanted`: number of operators of the task.
    """
    for _ in range(TRIES):
        seed = _seed(draft.random, grammar)
        if seed is None or (seed.family == "losses" and wanted > 2):
            continue  # a loss ends a task
        _reset(draft)
        if seed.integers:
            draft.start_with_indices((BATCH, draft.random.choice(draft.dimensions.lengths)))
        else:
            shape = _shape(draft.random, seed.form, draft.dimensions)
            draft.start(shape, _layout(draft.random, len(shape)))
        try:
            draft.apply(seed)
        except Unfit:
            continue
        if _count(draft) <= wanted:
            return True
    return False


def _reset(draft: Draft) -> None:
    for part in (draft.inputs, draft.attributes, draft._made):
        part.clear()
    for listed in (draft.afterwards, draft.lines, draft.values, draft.families):
        listed.clear()


def _add(draft: Draft, grammar: Grammar, left: int) -> bool:
    for _ in range(TRIES):
        seed = _seed(draft.random, grammar, draft.families[-1])
        if seed is None or seed.integers or (seed.family == "losses" and left > 2):
            continue
        kept = draft._state()
        try:
            draft.apply(seed)
        except Unfit:
            continue
        more = _count_added(draft)
        if more == left or (more < left and seed.family != "losses"):
            return True
        draft._restore(kept)
    return False


def _count(draft: Draft) -> int:
    return sum(_count_line(draft, line) for line in draft.lines)


def _count_added(draft: Draft) -> int:
    return _count_line(draft, draft.lines[-1])


def _count_line(draft: Draft, line: str) -> int:
    attributes = "".join(f"        self.{n} = {t}\n" for n, t in draft.attributes.items())
    code = (
        f"class Model:\n    def __init__(self):\n        pass\n{attributes}"
        f"    def forward(self):\n        {line}\n"
    )
    return len(labels(parse(code)))


def _outputs(draft: Draft) -> tuple[str, ...]:
    """Return the names of the values that the task returns: the last value, sometimes also an
    earlier one."""
    made = [value for value in draft.values if not value.given]
    if len(made) > 1 and draft.random.random() < 0.15:
        return (made[-1].name, draft.random.choice(made[:-1]).name)
    return (made[-1].name,)


def _seed(draw: random.Random, grammar: Grammar, before: str = "") -> Seed | None:
    """Return a random operator template. `before`: family of the previous operator; "" for the
    first one."""
    factors = FOLLOWING.get(before, {})
    weights = {name: w * factors.get(name, 1.0) for name, w in grammar.families.items()}
    family = drawn(draw, weights)
    seeds = catalogue().get(family, ())
    return draw.choice(seeds) if seeds else None


def _shape(draw: random.Random, form: str, dimensions: Dimensions) -> tuple[int, ...]:
    letters = form.split()
    if letters[0] == "...":
        rank = draw.choice([r for r in (1, 2, 2, 3, 3, 4, 4, 4) if r >= len(letters) - 1])
    else:
        rank = len(letters)
    return (BATCH, *dimensions.shape(draw, rank))


def _layout(draw: random.Random, rank: int) -> str:
    if draw.random() > 0.12 or rank < 3:
        return "contiguous"
    return draw.choice(("channels_last", "transposed") if rank == 4 else ("transposed",))
