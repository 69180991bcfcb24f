"""Order the operations by which one block computes its tile of an einsum.

A tile has one or two dimensions, named by letters. Pure functions of letters and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations


@dataclass(frozen=True)
class Einsum:
    """Equation of an einsum: the letters of each operand's dimensions, and those of the result."""

    words: tuple[str, ...]
    result: str

    def stored_in(self, order: Sequence[int]) -> Einsum:
        """Return the equation whose result has its dimensions in the given order."""
        return Einsum(self.words, "".join(self.result[d] for d in order))


@dataclass(frozen=True)
class TileOperation:
    """One operation on values of a block; values are numbered, the operands first.

    `kind` is `multiply` (elementwise, with broadcasting), `dot` (matrix product) or `sum` (over the
    letter `summed` of `left`).
    """

    kind: str
    left: int
    right: int
    letters: str
    """Letters of the result's dimensions."""
    summed: str = ""


def tile_operations(
    words: Sequence[str], result: str, sizes: Mapping[str, int]
) -> tuple[TileOperation, ...] | None:
    """Return the operations that compute the result's tile from the operands' tiles.

    Operands are scaled first, and products with few results come before others. None if no such
    operations exist: a tile would need three dimensions, or a letter is summed over that three
    values have.
    """
    if any(len(word) > 2 for word in (*words, result)):
        return None
    live, done = dict(enumerate(words)), []
    while len(live) > 1 or set(next(iter(live.values()))) != set(result):
        found = (
            _multiplied(live)
            or _summed(live, result)
            or _product(live, result, sizes)
            or _spread(live, result)
        )
        if found is None:
            return None
        done.append(found)
        for number in {found.left, found.right}:
            live.pop(number)
        live[len(words) + len(done) - 1] = found.letters
    return tuple(done)


def _multiplied(live: Mapping[int, str]) -> TileOperation | None:
    """Return the product of a value and the smallest one that has all of its letters."""
    pairs = [(len(live[b]), a, b) for a, b in permutations(live, 2) if set(live[a]) <= set(live[b])]
    if not pairs:
        return None
    _, small, large = min(pairs)
    return TileOperation("multiply", large, small, live[large])


def _summed(live: Mapping[int, str], result: str) -> TileOperation | None:
    """Return the sum over a letter that only one value has."""
    for number, word in live.items():
        others = "".join(other for k, other in live.items() if k != number)
        for letter in word:
            if letter not in result + others:
                return TileOperation("sum", number, number, word.replace(letter, ""), letter)
    return None


def _product(
    live: Mapping[int, str], result: str, sizes: Mapping[str, int]
) -> TileOperation | None:
    """Return the matrix product with the smallest result among those of two values that share one
    letter, over which the einsum sums."""
    found = []
    for a, b in combinations(live, 2):
        shared = set(live[a]) & set(live[b])
        others = "".join(other for k, other in live.items() if k not in (a, b))
        if len(shared) != 1 or len(live[a]) != 2 or len(live[b]) != 2:
            continue
        (letter,) = shared
        if letter not in result + others:
            letters = (live[a] + live[b]).replace(letter, "")
            found.append((sizes[letters[0]] * sizes[letters[1]], a, b, letters, letter))
    if not found:
        return None
    _, a, b, letters, letter = min(found)
    return TileOperation("dot", a, b, letters, letter)


def _spread(live: Mapping[int, str], result: str) -> TileOperation | None:
    """Return the outer product of two vectors of the result."""
    for a, b in combinations(live, 2):
        if len(live[a] + live[b]) <= 2 and set(live[a] + live[b]) <= set(result):
            return TileOperation("multiply", a, b, live[a] + live[b])
    return None
