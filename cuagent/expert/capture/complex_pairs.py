"""Replace complex arithmetic, such as that of rotary embeddings, by arithmetic on pairs of floats.

A complex value of shape S becomes a float32 tensor of shape (*S, 2) with the real part first, as in
`torch.view_as_real`. A graph does not change if it has a complex operation outside of `RULES`, or a
complex result.

Not reproduced: torch multiplies by a real tensor or number as by a complex one whose imaginary part
is 0, which makes NaN of infinite elements and 0 of some elements -0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.capture.export import Captured


class _NotPaired(Exception):
    """Raised for a complex operation that has no rule in `RULES`."""


def with_pairs(captured: Captured) -> Captured:
    """Return the captured graph without complex values; the same graph if that is impossible."""
    if not any(_is_complex(node) for node in captured.nodes):
        return captured
    edit = Edit(captured)
    if any(_is_complex(value) for value in edit.outputs):
        return captured
    pairs = _Pairs(edit)
    try:
        for node in edit.nodes:
            pairs.visit(node)
    except _NotPaired:
        return captured
    return edit.result()


def _is_complex(value: Any) -> bool:
    found = getattr(value, "meta", {}).get("val")
    return bool(getattr(getattr(found, "dtype", None), "is_complex", False))


class _Pairs:
    """Replaces the complex values of a captured graph by pairs of real numbers.

    It maps each complex node to the node of its pairs.
    """

    def __init__(self, edit: Edit) -> None:
        import torch

        self.edit, self.aten = edit, torch.ops.aten
        self.found: dict[Any, Any] = {}

    def visit(self, node: Any) -> None:
        """Add the pairs of a complex node; replace a real node that reads complex values."""
        import torch

        if not _is_complex(node) and not any(map(_is_complex, node.all_input_nodes)):
            return
        if _is_complex(node) and node.meta["val"].dtype is not torch.complex64:
            raise _NotPaired
        if node.op == "placeholder":
            self.found[node] = self._stored(node)
            return
        rule = RULES.get(called(node))
        if rule is None:
            raise _NotPaired
        with self.edit.graph.inserting_before(node):
            made = rule(self, node)
        if _is_complex(node):
            self.found[node] = made
        else:
            self.edit.replace(node, made)

    def _stored(self, node: Any) -> Any:
        """Return the pairs of an input or parameter, which may be a view with the conjugate bit
        set.
        """
        with self.edit.graph.inserting_after(node):
            resolved = self.call("resolve_conj", node)
        with self.edit.graph.inserting_after(resolved):
            return self.call("view_as_real", resolved)

    def call(self, name: str, *args: Any) -> Any:
        """Add a call of an aten operator, named `operator.overload`; return its node."""
        packet, _, overload = name.partition(".")
        return self.edit.call(getattr(getattr(self.aten, packet), overload or "default"), args)

    def pair(self, value: Any) -> Any:
        if value not in self.found:
            raise _NotPaired
        return self.found[value]

    def parts(self, value: Any) -> tuple[Any, Any]:
        """Return the nodes of the real and the imaginary part of a complex value."""
        pair = self.pair(value)
        real, imaginary = (self.call("select.int", pair, -1, k) for k in (0, 1))
        return real, imaginary

    def join(self, real: Any, imaginary: Any) -> Any:
        return self.call("stack", [real, imaginary], -1)


def _of_parts(pairs: _Pairs, node: Any) -> Any:
    shape = list(node.meta["val"].shape)
    return pairs.join(
        *(
            part if list(part.meta["val"].shape) == shape else pairs.call("expand", part, shape)
            for part in node.args
        )
    )


def _product(pairs: _Pairs, node: Any) -> Any:
    x, y = node.args
    if not _is_complex(x):
        x, y = y, x
    if not _is_complex(y):
        return _scaled(pairs, x, y)
    (a, b), (c, d) = pairs.parts(x), pairs.parts(y)
    call = pairs.call
    real = call("sub.Tensor", call("mul.Tensor", a, c), call("mul.Tensor", b, d))
    imaginary = call("add.Tensor", call("mul.Tensor", a, d), call("mul.Tensor", b, c))
    return pairs.join(real, imaginary)


def _scaled(pairs: _Pairs, x: Any, factor: Any) -> Any:
    if isinstance(factor, complex):
        raise _NotPaired
    # A tensor without dimensions keeps none: a float64 tensor with one dimension would make the
    # product float64.
    if hasattr(factor, "meta") and factor.meta["val"].dim():
        factor = pairs.call("unsqueeze", factor, -1)
    return pairs.call("mul.Tensor", pairs.pair(x), factor)


def _sum(pairs: _Pairs, node: Any) -> Any:
    x, y = node.args
    if node.kwargs or not (_is_complex(x) and _is_complex(y)):
        raise _NotPaired
    return pairs.call(f"{called(node)}.Tensor", pairs.pair(x), pairs.pair(y))


def _conjugate(pairs: _Pairs, node: Any) -> Any:
    real, imaginary = pairs.parts(node.args[0])
    return pairs.join(real, pairs.call("neg", imaginary))


def _polar(pairs: _Pairs, node: Any) -> Any:
    size, angle = node.args
    waves = (pairs.call("cos", angle), pairs.call("sin", angle))
    return pairs.join(*(pairs.call("mul.Tensor", size, wave) for wave in waves))


def _size(pairs: _Pairs, node: Any) -> Any:
    return pairs.call("hypot", *pairs.parts(node.args[0]))


def _angle(pairs: _Pairs, node: Any) -> Any:
    real, imaginary = pairs.parts(node.args[0])
    return pairs.call("atan2", imaginary, real)


def _reshaped(pairs: _Pairs, node: Any) -> Any:
    return pairs.call("reshape", pairs.pair(node.args[0]), [*node.meta["val"].shape, 2])


def _expanded(pairs: _Pairs, node: Any) -> Any:
    return pairs.call("expand", pairs.pair(node.args[0]), [*node.meta["val"].shape, 2])


def _cut(pairs: _Pairs, node: Any) -> Any:
    """Return the pairs of a slice, or of a selected index, of a complex value."""
    x, dim, *rest = node.args
    if node.kwargs:
        raise _NotPaired
    return pairs.edit.call(node.target, (pairs.pair(x), dim % x.meta["val"].dim(), *rest))


def _permuted(pairs: _Pairs, node: Any) -> Any:
    x, *dims = node.args
    rank = x.meta["val"].dim()
    order = list(range(rank))
    if called(node) == "permute":
        order = [d % rank for d in dims[0]]
    else:
        a, b = (d % rank for d in dims)
        order[a], order[b] = order[b], order[a]
    return pairs.call("permute", pairs.pair(x), [*order, rank])


VIEWS = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten")
COPIES = ("clone", "contiguous", "alias", "detach")
RULES: dict[str, Callable[[_Pairs, Any], Any]] = {
    "view_as_complex": lambda pairs, node: node.args[0],
    "complex": _of_parts,
    "polar": _polar,
    "mul": _product,
    "add": _sum,
    "sub": _sum,
    "_conj": _conjugate,
    "conj": _conjugate,
    "conj_physical": _conjugate,
    "view_as_real": lambda pairs, node: pairs.pair(node.args[0]),
    "real": lambda pairs, node: pairs.parts(node.args[0])[0],
    "imag": lambda pairs, node: pairs.parts(node.args[0])[1],
    "abs": _size,
    "angle": _angle,
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten"), _reshaped
    ),
    **dict.fromkeys(("select", "slice"), _cut),
    **dict.fromkeys(("permute", "transpose"), _permuted),
    "expand": _expanded,
    **dict.fromkeys(
        ("clone", "contiguous", "alias", "detach"), lambda pairs, node: pairs.pair(node.args[0])
    ),
}
"""Functions that return the pairs of a complex operation's result; the key is the operator's
name.
"""
