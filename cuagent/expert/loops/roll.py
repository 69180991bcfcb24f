"""Convert an unrolled loop in a captured graph into one body with its number of steps.

An argument of the body is one of: a value of the same step, a value of the previous step, a node
outside of the loop, one such node for each step, or a number that grows by a constant. Anything
else (a value from two steps before, another constant in each step) is not converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.expert.loops.periods import LEAST_REPEATS, Repeat


@dataclass(frozen=True)
class Local:
    """Value of the body's operator at `position`: in the same step (`lag` 0) or the previous one
    (1).
    """

    position: int
    lag: int


@dataclass(frozen=True)
class Varying:
    """An argument that is a different node outside of the loop in each step."""

    nodes: tuple[Any, ...]


@dataclass(frozen=True)
class Progression:
    """An integer argument that is `first + k * step` in step `k`."""

    first: int
    step: int


@dataclass(frozen=True)
class Rolled:
    """A loop: its nodes by step, and the arguments of its body as patterns (Local, Varying, ...).

    A position is the index of an operator in the body.
    """

    steps: tuple[tuple[Any, ...], ...]
    arguments: tuple[tuple[Any, Any], ...]
    """(positional arguments, keyword arguments) of each operator of the body."""
    initial: dict[int, Any]
    """Node or number that the first step reads in place of an operator's value in the step before.

    The key is the operator's position.
    """
    states_of: tuple[frozenset[int], ...]
    """Positions whose values in the previous step an operator depends on, for each operator."""
    timed: tuple[bool, ...]
    """True if the operator's value differs from step to step, for each operator."""

    def is_carried(self, position: int) -> bool:
        """Return True if the value of the operator at `position` depends on the previous step."""
        return bool(self.states_of[position])


def rolled(nodes: Sequence[Any], repeat: Repeat) -> list[Rolled]:
    """Return the loops in a repeated part of a graph; empty if its data flow is not that of a loop.

    An incomplete period may be at the start or at the end, the first step may differ, and equal
    loops may follow each other.
    """
    for start in _starts(repeat):
        count = (repeat.end - start) // repeat.period
        steps = tuple(
            tuple(nodes[start + k * repeat.period : start + (k + 1) * repeat.period])
            for k in range(count)
        )
        found: list[Rolled] = []
        while len(steps) >= LEAST_REPEATS:
            loop, used = _matched(steps)
            if loop is not None:
                found.append(loop)
            steps = steps[used:]
        if found:
            return found
    return []


def _starts(repeat: Repeat) -> Iterator[int]:
    rest = repeat.length % repeat.period
    for offset in (*range(rest + 1), repeat.period):
        yield repeat.start + offset


def _matched(steps: tuple[tuple[Any, ...], ...]) -> tuple[Rolled | None, int]:
    """Return the loop that the longest run of equal steps from the first step on forms.

    With it: the number of steps to leave out before the next search. The loop is None if the steps
    form no loop.
    """
    from torch.utils import _pytree as pytree

    place = {node: (k, q) for k, step in enumerate(steps) for q, node in enumerate(step)}
    arguments: list[tuple[Any, Any]] = []
    initial: dict[int, Any] = {}
    count = len(steps)
    for position in range(len(steps[0])):
        flat = [pytree.tree_flatten((s[position].args, s[position].kwargs)) for s in steps]
        spec = flat[1][1]
        if any(other[1] != spec for other in flat):
            return None, len(steps)
        patterns = []
        for column in zip(*(leaves for leaves, _ in flat), strict=True):
            value, valid = _pattern(column, place)
            count = min(count, valid)
            if count < LEAST_REPEATS:
                return None, len(steps)
            if isinstance(value, Local) and value.lag:
                first = initial.setdefault(value.position, column[0])
                if not _same(first, column[0]):
                    return None, len(steps)
            patterns.append(value)
        arguments.append(pytree.tree_unflatten(patterns, spec))
    if count < len(steps):
        return _matched(steps[:count])
    if not initial:
        return None, len(steps)
    carried, timed = _dependences(arguments)
    return Rolled(steps, tuple(arguments), initial, carried, timed), count


def _same(a: Any, b: Any) -> bool:
    return a is b or (not hasattr(a, "meta") and not hasattr(b, "meta") and a == b)


def _pattern(column: Sequence[Any], place: dict[Any, tuple[int, int]]) -> tuple[Any, int]:
    """Return the pattern of one argument (a `Local`, `Varying`, `Progression`, a node or a
    constant).

    With it: the number of steps, from the first on, that follow the pattern. `column` has the
    argument in each step; `place` maps a node of the loop to its step and its position.
    """
    found = [place.get(a) if hasattr(a, "meta") else None for a in column]
    local = [(k - f[0], f[1]) if f else None for k, f in enumerate(found)]
    if local[1]:
        lag, position = local[1]
        first = column[0]
        outside = not local[0] and (hasattr(first, "meta") or isinstance(first, int | float))
        if not (outside if lag == 1 else lag == 0 and local[0] == local[1]):
            return None, 0
        limit = next((k for k in range(1, len(column)) if local[k] != local[1]), len(column))
        return Local(position, lag), limit
    if local[0]:
        return None, 0
    limit = next((k for k, entry in enumerate(local) if entry), len(column))
    return _outer_pattern(column[:limit])


def _outer_pattern(column: Sequence[Any]) -> tuple[Any, int]:
    """Return the pattern of an argument that comes from outside of the loop.

    With it: the number of steps, from the first on, that follow the pattern.
    """
    nodes = [hasattr(a, "meta") for a in column]
    if nodes[0]:
        limit = next((k for k, is_node in enumerate(nodes) if not is_node), len(column))
        column = column[:limit]
        return (column[0] if len(set(column)) == 1 else Varying(tuple(column))), limit
    equal = next(
        (k for k, a in enumerate(column) if type(a) is not type(column[0]) or a != column[0]),
        len(column),
    )
    if equal > 1:
        return column[0], equal
    if not all(isinstance(a, int) and not isinstance(a, bool) for a in column[:2]):
        return None, equal
    step = column[1] - column[0]
    limit = next(
        (k for k, a in enumerate(column) if not isinstance(a, int) or a != column[0] + k * step),
        len(column),
    )
    return Progression(column[0], step), limit


def _dependences(
    arguments: Sequence[tuple[Any, Any]],
) -> tuple[tuple[frozenset[int], ...], tuple[bool, ...]]:
    """Return the fields `states_of` and `timed` of a `Rolled` with these arguments."""
    from torch.utils import _pytree as pytree

    carried: list[frozenset[int]] = []
    timed: list[bool] = []
    for pair in arguments:
        leaves = pytree.tree_leaves(pair)
        states: frozenset[int] = frozenset()
        changes = False
        for leaf in leaves:
            if isinstance(leaf, Local) and leaf.lag:
                states |= {leaf.position}
            elif isinstance(leaf, Local):
                states |= carried[leaf.position]
                changes |= timed[leaf.position]
            changes |= isinstance(leaf, Varying | Progression)
        carried.append(states)
        timed.append(changes or bool(states))
    return tuple(carried), tuple(timed)
