"""Fill the placeholders of an operator template (`Seed`) with sizes, drawn numbers, parameters and
inputs.

    {x}                 the main argument
    {c}                 a size of the form, by its letter; not the batch, which the filter chooses
    {width} {dim} ...   a drawn number (`_NUMBERS`), the same one wherever it occurs in one call
    {like}              an earlier value, or a new input, of the shape of {x}
    {input[n, d]}       a new input: input, scaled, positive, unit, signs or mask; `...` is the
                        shape of {x}
    {index[n; d]}       a new input of integers from 0 to d - 1
    {weight[d, width]}  a new parameter; {bias[width]} too

Invariant: all random numbers are from the draft's generator, in the order of the placeholders.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cuagent.synth.dimensions import Dimensions
    from cuagent.synth.seeds import Seed

BATCH = 1_000_003
"""Symbolic batch size while shapes are computed: a large prime, so that sizes which depend on the
batch are recognized as its multiples."""
PLACEHOLDER = re.compile(r"\{(\w+)(?:\[([^\];]*)(?:;\s*(\w+))?\])?\}")
DRAWN_INPUTS = ("input", "scaled", "positive", "unit", "signs", "mask", "index")


class Unfit(Exception):
    """Error: an operator template cannot be applied to the value, such as a 2-D operator to a
    vector."""


def bind(form: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Return the size that each letter of a shape form stands for in `shape`. Raises Unfit if the
    shape does not fit the form."""
    letters = form.split()
    if letters[0] == "...":
        letters = letters[1:]
        if len(shape) < max(1, len(letters)):
            raise Unfit(f"fewer than {len(letters)} dimensions")
        shape = shape[len(shape) - len(letters) :]
    elif len(shape) != len(letters):
        raise Unfit(f"not {len(letters)} dimensions")
    return dict(zip(letters, shape, strict=True))


def size_text(size: int) -> str:
    """Return a size as source text: `12`, or `3 * BATCH` for a multiple of the batch size.

    Raises Unfit if the size depends on the batch in another way.
    """
    if size % BATCH == 0 and size:
        return "BATCH" if size == BATCH else f"{size // BATCH} * BATCH"
    if size > BATCH // 2:
        raise Unfit("a size that depends on the batch, but is no multiple of it")
    return str(size)


@dataclass(frozen=True)
class Value:
    """A tensor in forward of a draft: an input or the result of a call."""

    name: str
    meta: Any
    """Meta tensor with the value's shape, strides and dtype."""
    given: bool = False
    """True if the value is an input of the task."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meta.shape)


class Drafted(Protocol):
    """Protocol with the part of `Draft` that `Filling` uses."""

    random: random.Random
    dimensions: Dimensions

    def like(self, value: Value, broadcast: bool) -> str: ...

    def new_input(self, kind: str, shape: tuple[int, ...], below: int) -> str: ...

    def new_parameter(self, kind: str, shape: tuple[int, ...]) -> str: ...


@dataclass
class Filling:
    """Values for the placeholders of one call; equal names have equal numbers."""

    draft: Drafted
    seed: Seed
    main: Value
    argument: str
    """Expression that replaces `{x}` in an operator template."""
    sizes: dict[str, int] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = bind(self.seed.form, self.main.shape)

    def fill(self, text: str) -> str:
        """Return the text with every placeholder replaced. Raises Unfit if the operator cannot be
        applied."""
        return PLACEHOLDER.sub(lambda found: self._one(found[1], found[2], found[3]), text)

    def _one(self, name: str, shape: str | None, below: str | None) -> str:
        if name == "x":
            return self.argument
        if name == "like":
            return self.draft.like(self.main, broadcast=self.seed.family == "elementwise")
        if shape is not None:
            sizes = self._shape(shape)
            if name in DRAWN_INPUTS:
                return self.draft.new_input(name, sizes, self.number(below) if below else 0)
            return self.draft.new_parameter(name, sizes)
        return self._scalar(name)

    def _scalar(self, name: str) -> str:
        if name in self.sizes:
            size = self.sizes[name]
            if size % BATCH == 0:
                raise Unfit("a parameter would grow with the batch")
            return size_text(size)
        if name not in self.drawn:
            self.drawn[name] = _NUMBERS[name](self)
        return self.drawn[name]

    def number(self, name: str) -> int:
        """Return the size or number that a name in a shape placeholder stands for. Raises Unfit."""
        if name in self.sizes:
            return self.sizes[name]
        return int(name) if name.isdigit() else int(self._scalar(name))

    def _shape(self, text: str) -> tuple[int, ...]:
        sizes: list[int] = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            sizes += self.main.shape if part == "..." else [self.number(part)]
        return tuple(sizes)

    def choose(self, *choices: int) -> int:
        return self.draft.random.choice(choices)

    @property
    def spatial(self) -> int:
        """Smallest spatial size of the main argument (dimensions after batch and channel); 0 if it
        has none."""
        return min(self.main.shape[2:], default=0)

    def window(self) -> int:
        """Return the kernel size that was drawn for this call; 3 if none was drawn."""
        return next((int(self.drawn[name]) for name in ("kernel", "odd") if name in self.drawn), 3)

    def dim(self) -> int:
        """Return a random dimension of the main argument. The first is rare, because it is most
        often the batch."""
        rank = len(self.main.shape)
        if rank == 1 or self.draft.random.random() < 0.1:
            return 0
        return self.draft.random.randrange(1, rank)

    def divisor(self, size: int) -> int:
        return self.choose(*(n for n in (1, 2, 3, 4, 5, 8, 16) if size % n == 0))


def _width(f: Filling) -> str:
    dimensions = f.draft.dimensions
    convolves = f.seed.family == "convolutions"
    return str(f.choose(*(dimensions.channels if convolves else dimensions.widths)))


def _dims(f: Filling) -> str:
    rank = len(f.main.shape)
    if rank > 2 and f.draft.random.random() < 0.3:
        first = f.draft.random.randrange(1, rank - 1)
        return f"({first}, {first + 1})"
    return str(f.dim())


def _dim(f: Filling) -> str:
    dim, rank = f.dim(), len(f.main.shape)
    return "-1" if dim == rank - 1 and f.draft.random.random() < 0.5 else str(dim)


def _few(f: Filling) -> str:
    dim = int(f._scalar("dim")) if "dim" in f.drawn or "{dim}" in f.seed.text else -1
    size = min(f.main.shape[dim], 64)
    if size < 4 or f.main.shape[dim] % BATCH == 0:
        raise Unfit("too small for a part, or not of a fixed size")
    return str(f.draft.random.randrange(2, size - 1))


def _part(f: Filling) -> str:
    """Return a random size between a quarter and three quarters of the chosen dimension."""
    dim = int(f._scalar("dim")) if "{dim}" in f.seed.text else -1
    size = f.main.shape[dim]
    if size < 8 or size % BATCH == 0:
        raise Unfit("too small for a part, or not of a fixed size")
    return str(size * f.choose(1, 2, 3) // 4)


def _kernel(f: Filling) -> str:
    if f.spatial < 3:
        raise Unfit("too small for a window")
    return str(f.choose(*(k for k in (2, 3, 3, 4, 5, 7) if k < f.spatial)))


def _heads(f: Filling) -> str:
    size = f.sizes["d"]
    choices = [n for n in (2, 4, 8) if size % n == 0 and size // n >= 4]
    if not choices:
        raise Unfit("no number of heads divides the size")
    return str(f.choose(*choices))


_NUMBERS: dict[str, Callable[[Filling], str]] = {
    "width": _width,
    "small": lambda f: str(f.choose(*f.draft.dimensions.hidden)),
    "vocabulary": lambda f: str(f.choose(*f.draft.dimensions.vocabulary)),
    "kernel": _kernel,
    "odd": lambda f: str(f.choose(3, 5, 7) if f.spatial > 7 else 3),
    "padding": lambda f: str(f.choose(*range(1, max(1, f.window() // 2) + 1))),
    "stride": lambda f: str(f.choose(1, 2, 2, 3)),
    "output": lambda f: str(f.choose(1, 2, 3, 4, 5, 7)),
    "groups": lambda f: str(f.divisor(f.sizes.get("c", 1))),
    "heads": _heads,
    "dim": _dim,
    "dims": _dims,
    "flag": lambda f: str(f.draft.random.random() < 0.4),
    "few": _few,
    "part": _part,
    "number": lambda f: f"{f.draft.random.choice((0.1, 0.25, 0.3, 0.5, 0.7, 1.5, 2.0))}",
    "power": lambda f: str(f.choose(2, 3)),
}
"""Function that draws a number, by the name of its placeholder."""
