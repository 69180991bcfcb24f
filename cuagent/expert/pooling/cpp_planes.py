"""Generate C++ loops of pools whose windows overlap: the argument is first copied into the cache.

The copy has a border of the reduction's initial value, so that the loops over the results have no
conditions, and each element of the argument is computed once.
"""

from __future__ import annotations

import itertools
import math

from cuagent.expert.graph.graph import Kind, Window
from cuagent.expert.pooling.positions import START, PoolText

MAX_PLANE = 1 << 14
"""Number of elements of the largest copy, all elements along the pooled dimensions with a
border."""
LEAST_PLANES = 4
"""Least number of copies: threads do not share one."""
MAX_TAPS = 32
"""Largest number of elements of a window."""


class Planes(PoolText):
    """Writes the loops of a pool over its trailing dimensions."""

    def has_planes(self) -> bool:
        """Return True if the pool has overlapping windows and planes that fit into the cache."""
        windows = [side for side in self.sides.values() if isinstance(side, Window)]
        rank = len(self.shape)
        trailing = list(self.sides) == list(range(rank - len(self.sides), rank))
        if self.anchor.kind is not Kind.POOL or len(windows) < 2 or not trailing:
            return False
        if any(side.adaptive for side in windows):
            return False
        taps = math.prod(side.kernel for side in windows)
        planes = math.prod(self.shape[: rank - len(windows)])
        overlap = all(side.kernel > side.stride for side in windows)
        size = math.prod(map(padded_extent, windows))
        return overlap and taps <= MAX_TAPS and size <= MAX_PLANE and planes >= LEAST_PLANES

    def planes(self) -> None:
        """Write the loops over all pooled dimensions for one plane."""
        w, rank = self.w, len(self.shape)
        self._copy()
        for k in self.sides:
            if k == rank - 1:
                w.pragma("omp simd")
            w.open(f"for (long i{k} = 0; i{k} < {self.shape[k]}; ++i{k})")
        self.values.fresh()
        w(f"float value = {START[self.op]};")
        for taps in itertools.product(*(range(side.kernel) for side in self.sides.values())):
            places = [
                _moved(f"i{k}", side.stride, tap * side.dilation)
                for (k, side), tap in zip(self.sides.items(), taps, strict=True)
            ]
            w.open("")
            w(f"const float element = {self._of_plane(places)};")
            w(self.joined("value", "element"))
            w.close()
        w(f"const float result = {self.divided('value')};")
        argument = str(self.anchor.args[0])
        if self.request.graph.node(argument).shape == self.shape:
            places = [_moved(f"i{k}", 1, side.padding) for k, side in self.sides.items()]
            self.values.declared[argument, self.index()] = self._of_plane(places)
        self.values.stores(self.index())
        w.close(len(self.sides))

    def _copy(self) -> None:
        """Write the computation of all elements of the argument along the pooled dimensions."""
        w, sides = self.w, list(self.sides.items())
        size = math.prod(padded_extent(side) for _, side in sides)
        w(f"alignas(64) float plane[{size}];")
        w(f"for (long k = 0; k < {size}; ++k) plane[k] = {START[self.op]};")
        places = []
        for k, side in sides:
            if k == sides[-1][0]:
                w.pragma("omp simd")
            end = min(side.extent, padded_extent(side) - side.padding)
            w.open(f"for (long p{k} = 0; p{k} < {end}; ++p{k})")
            places.append(_moved(f"p{k}", 1, side.padding))
        self.values.fresh()
        index = self.source({k: f"p{k}" for k in self.sides})
        w(f"{self._of_plane(places)} = {self.values.at(self.anchor.args[0], index)};")
        w.close(len(sides))
        self.values.fresh()

    def _of_plane(self, places: list[str]) -> str:
        terms, step = [], 1
        for place, side in zip(reversed(places), reversed(self.sides.values()), strict=True):
            terms.append(f"({place}) * {step}" if step > 1 else place)
            step *= padded_extent(side)
        return f"plane[{' + '.join(reversed(terms))}]"


def padded_extent(side: Window) -> int:
    """Return the number of positions along a dimension, in or outside of the argument, that some
    window contains."""
    return (side.count - 1) * side.stride + (side.kernel - 1) * side.dilation + 1


def _moved(place: str, stride: int, offset: int) -> str:
    scaled = f"{place} * {stride}" if stride > 1 else place
    return f"{scaled} + {offset}" if offset else scaled
