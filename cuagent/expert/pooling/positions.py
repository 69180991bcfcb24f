"""Write windows, divisors and source positions of pools as C++, for both generators."""

from __future__ import annotations

from cuagent.expert.anchored.values import Index, Values
from cuagent.expert.graph.graph import Kind, Scale, Window
from cuagent.expert.kernel import Request
from cuagent.expert.streaming.expressions import number
from cuagent.expert.streaming.text import Writer

START = {"max": "-INFINITY", "mean": "0.f", "sum": "0.f"}


class PoolText:
    """Generates C++ text for the kernel of a pool or a resample.

    `sides` maps each pooled dimension to its `Window` or `Scale`.
    """

    def __init__(self, request: Request) -> None:
        self.anchor = next(n for n in request.group.nodes if n.kind in (Kind.POOL, Kind.RESAMPLE))
        self.request, self.w = request, Writer()
        self.values = Values(request.graph, request.group, self.anchor, self.w)
        self.shape, self.op = self.anchor.shape, self.anchor.op
        self.sides = dict(zip(self.anchor.dims, self.anchor.spec, strict=True))

    def index(self) -> Index:
        """Return the C++ index variables of the result, one per dimension."""
        return tuple(f"i{k}" for k in range(len(self.shape)))

    def source(self, places: dict[int, str]) -> Index:
        """Return the C++ index of the argument's element at `places` (by pooled dimension)."""
        return tuple(places.get(k, f"i{k}") for k in range(len(self.shape)))

    def element(self, places: dict[int, str]) -> str:
        """Declare a variable with the argument's element at `places` (by pooled dimension); return
        its name.
        """
        return self.values.at(self.anchor.args[0], self.source(places))

    def head(self, *includes: str) -> None:
        for line in self.request.title.splitlines():
            self.w(f"// {line}")
        for side in self.sides.values():
            if isinstance(side, Window) and side.adaptive:
                self.w(f"// {side.extent} elements to {side.count}.")
            elif isinstance(side, Window):
                self.w(
                    f"// {side.extent} elements to {side.count}: kernel {side.kernel}, stride "
                    f"{side.stride}, padding {side.padding}, dilation {side.dilation}."
                )
            else:
                self.w(f"// {side.extent} elements to {side.count}, interpolated.")
        for header in includes:
            self.w(f'#include "{header}"')
        self.w()

    def joined(self, word: str, value: str) -> str:
        """Return the C++ statement that adds `value` to `word`, or stores the larger of both in
        `word`.
        """
        if self.op == "max":
            return f"{word} = ({value} > {word}) | ({value} != {value}) ? {value} : {word};"
        return f"{word} += {value};"

    def divided(self, word: str) -> str:
        """Return the C++ expression of a window's result; for a mean, `word` divided by the element
        count.
        """
        if self.op != "mean":
            return word
        constant, factors = 1, []
        for k, side in self.sides.items():
            count = constant_count(side)
            if count is None:
                factors.append(self._declare_count(k, side))
            else:
                constant *= count
        if constant > 1 or not factors:
            factors.insert(0, f"{constant}.f")
        return f"{word} / ({' * '.join(factors)})" if len(factors) > 1 else f"{word} / {factors[0]}"

    def _declare_count(self, k: int, side: Window) -> str:
        w = self.w
        if side.adaptive:
            start, end = adaptive_bounds(f"static_cast<int>(i{k})", side)
            w(f"const int count{k} = {end} - {start};")
        else:
            limit = side.extent + (side.padding if side.include_padding else 0)
            place = f"static_cast<int>(i{k}) * {side.stride} - {side.padding}"
            w(f"const int from{k} = {place}, to{k} = from{k} + {side.kernel};")
            end = f"(to{k} < {limit} ? to{k} : {limit})"
            start = f"from{k}" if side.include_padding else f"(from{k} > 0 ? from{k} : 0)"
            w(f"const int count{k} = {end} - {start};")
        return f"static_cast<float>(count{k})"

    def nearest(self, k: int) -> str:
        """Declare a variable with the source index along dimension `k` (nearest); return its
        name.
        """
        side = self.sides[k]
        repeats = whole_repeats(side)
        if repeats:
            self.w(f"const int p{k} = static_cast<int>(i{k}) / {repeats};")
        else:
            place = f"static_cast<float>(static_cast<int>(i{k})) * {number(side.factor)}"
            self.w(f"const int q{k} = static_cast<int>({place});")
            self.w(f"const int p{k} = q{k} < {side.extent} ? q{k} : {side.extent - 1};")
        return f"p{k}"

    def linear(self, k: int) -> tuple[str, str, str]:
        """Declare variables for a linear interpolation along dimension `k`.

        Returns (lower source index, upper source index, weight of the upper one).
        """
        side = self.sides[k]
        factor, place = number(side.factor), f"static_cast<float>(static_cast<int>(i{k}))"
        real = f"({place} + 0.5f) * {factor} - 0.5f" if side.centred else f"{place} * {factor}"
        w = self.w
        w(f"const float real{k} = {real};")
        w(f"const float from{k} = real{k} > 0.f ? real{k} : 0.f;")
        w(f"const int near{k} = static_cast<int>(from{k});")
        w(f"const int p{k} = near{k} < {side.extent} ? near{k} : {side.extent - 1};")
        w(f"const int q{k} = p{k} + (p{k} < {side.extent - 1});")
        w(f"const float weight{k} = from{k} - static_cast<float>(p{k});")
        return f"p{k}", f"q{k}", f"weight{k}"


def constant_count(side: Window) -> int | None:
    """Return the divisor of a mean along one dimension; None if it differs between windows."""
    if side.adaptive:
        return None
    limit = side.extent + (side.padding if side.include_padding else 0)
    inside = (side.count - 1) * side.stride - side.padding + side.kernel <= limit
    whole = inside and (side.include_padding or side.padding == 0)
    return side.kernel if whole else None


def adaptive_bounds(index: str, side: Window) -> tuple[str, str]:
    """Return the C++ expressions of an adaptive window's first element and end."""
    start = f"({index} * {side.extent} / {side.count})"
    end = f"((({index} + 1) * {side.extent} + {side.count - 1}) / {side.count})"
    return start, end


def whole_repeats(side: Scale) -> int:
    """Return how often the resample repeats each element if that is a power of two; else 0.

    The source index is then an integer quotient; otherwise it is a rounded-down float product, as
    in torch.
    """
    repeats = side.count // side.extent
    whole = repeats * side.extent == side.count and side.factor * repeats == 1
    return repeats if whole and repeats & (repeats - 1) == 0 else 0
