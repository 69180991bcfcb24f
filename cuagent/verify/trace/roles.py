"""Find the roles of parameters and buffers in a reference, from one run of it.

A parameter that is not a factor of a product (a bias, a gain, a table of added scores, a
temperature) has little effect near its initial zero or one. A buffer is loaded with the weights, so
a kernel must read it. Runs in the oracle's process. Not covered: buffers outside the state dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuagent.verify.inputs.random_values import randn, seeded
from cuagent.verify.inputs.varied import Fixed
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

FACTORS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
    "addmv": (1, 2), "convolution": (0, 1),
}  # fmt: skip
"""Product operators, with the indices of the arguments that are multiplied."""
RECURRENT = ("rnn", "lstm", "gru")
"""Parts of the names of recurrent operators; their matrices are factors of products too."""
BOUNDING = frozenset(("clamp", "clamp_min", "clamp_max", "hardtanh"))
FEW_NUMBERS = 2
"""Largest number of elements of a parameter that is treated as a single number."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
NOISE = 0.3
"""Relative size of the random changes to floating buffers."""


@dataclass(frozen=True)
class Roles:
    """Names of parameters and buffers in the state dict, by their role in the reference."""

    added: frozenset[str] = frozenset()
    """Floating parameters that are not a factor of a product: biases, gains, added scores."""
    clamped: frozenset[str] = frozenset()
    """Names in `added` whose parameter, or a tensor computed from it, goes through a clamp."""
    buffers: frozenset[str] = frozenset()
    """Buffers that can be given other values: the reference accepts them and its output changes."""
    unvaried: tuple[str, ...] = ()
    """Buffers that are never changed: outside the state dict, or the reference accepts no other
    values.
    """

    @property
    def without_buffers(self) -> Roles:
        """A copy of these roles in which no buffer may change."""
        return replace(self, buffers=frozenset())

    @property
    def grows(self) -> bool:
        """True if Weights.GROWN changes some parameter or buffer."""
        return bool(self.added or self.buffers)

    def has_few_numbers(self, state: dict[str, Tensor]) -> bool:
        """Return True if a parameter in `added` has at most FEW_NUMBERS elements.

        Both kinds of grown weights are needed then: Weights.GROWN adds a constant to such a
        parameter, and Weights.PAST subtracts it.
        """
        return any(state[name].numel() <= FEW_NUMBERS for name in self.added)


def roles_of(model: nn.Module, run: Callable[[], list[Tensor]]) -> Roles:
    """Return the roles of the parameters and buffers of `model`.

    `run` calls it on the task's own inputs. Integer buffers on a GPU are not changed: an index out
    of range there ends the process.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    factors, clamped = _used(named, run)
    added = {n for n, x in named.items() if x.is_floating_point() and n not in factors}
    state = model.state_dict()
    buffers = dict(model.named_buffers(remove_duplicate=False))
    ours = {n: b for n, b in buffers.items() if not n.endswith(STATISTICS) and b.numel()}
    tried = {
        n: _influence(b, run) if n in state and (_holds_no_index(b) or not b.is_cuda) else None
        for n, b in ours.items()
    }
    varied = {n for n, influence in tried.items() if influence}
    unvaried = tuple(sorted(n for n, influence in tried.items() if influence is None))
    return Roles(frozenset(added), frozenset(clamped & added), frozenset(varied), unvaried)


def changed_buffer(buffer: Tensor, generator: Generator) -> Tensor:
    """Return random other values for a buffer, in the same range and order.

    A buffer of two values changes like a mask. Integers and booleans change like fixed inputs, by
    the first change that differs (`inputs.varied`).
    """
    import torch

    if not is_inexact(buffer):
        fixed = Fixed(buffer, 0)
        changed = (fixed.changed(cs[0], generator) for cs in fixed.candidates() if cs)
        return next((c for c in changed if not torch.equal(c, buffer)), buffer)
    if not buffer.is_floating_point():
        return buffer
    values = buffer.unique()
    if values.numel() == 2 and buffer.numel() > 2:
        place = Fixed(buffer == values[1], 0)
        mask = place.changed(place.candidates()[0][0], generator)
        return values[mask.long()].view(buffer.shape)
    if _rising(buffer) and buffer.numel() > 2 and bool(buffer.isfinite().all()):
        return _respaced(buffer, generator)
    if not bool(buffer.any()):
        return NOISE * randn(buffer, generator).to(buffer.dtype)
    moved = buffer * (1 + NOISE * randn(buffer, generator).clamp(-2, 2)).to(buffer.dtype)
    return moved.clamp(values[0], values[-1]) if values.numel() > 1 else moved


def _holds_no_index(buffer: Tensor) -> bool:
    """Return True if the buffer cannot contain indices: it is floating, complex or boolean."""
    import torch

    return is_inexact(buffer) or buffer.dtype is torch.bool


def _influence(buffer: Tensor, run: Callable[[], list[Tensor]]) -> bool | None:
    """Return True if other values of `buffer` change the output, False if they do not.

    None if the reference accepts no other values.
    """
    import torch

    usual, original = run(), buffer.clone()
    differs = []

    def accepts(sample: Tensor) -> bool:
        buffer.copy_(sample)
        try:
            results = run()
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return False
        finally:
            buffer.copy_(original)
        differs.append(any(not torch.equal(x, y) for x, y in zip(results, usual, strict=True)))
        return all(
            x.shape == y.shape and bool((x.isfinite() | ~y.isfinite()).all())
            for x, y in zip(results, usual, strict=True)
        )

    generator = seeded([buffer], 1)
    samples = [changed_buffer(original, generator) for _ in range(2)]
    if all(torch.equal(sample, original) for sample in samples) or not all(map(accepts, samples)):
        return None
    return any(differs)


def _used(
    named: Mapping[str, Tensor], run: Callable[[], list[Tensor]]
) -> tuple[set[str], set[str]]:
    """Return the names of the parameters that are factors of products, and of those that are
    clamped.

    `named` are all parameters by name. A clamped tensor other than a parameter counts for the
    parameter with the same number of elements.
    """
    import torch

    places = {x.untyped_storage().data_ptr(): name for name, x in named.items()}
    sizes = {x.numel(): name for name, x in named.items()}
    factors: set[str] = set()
    clamped: set[str] = set()

    def name_of(tensor: Any) -> str | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        return places.get(tensor.untyped_storage().data_ptr())

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = function.overloadpacket.__name__.rstrip("_")
        if name in FACTORS:
            given = [args[at] for at in FACTORS[name] if at < len(args)]
            factors.update(filter(None, map(name_of, given)))
        elif any(word in name for word in RECURRENT):
            tensors = _tensors(args)
            factors.update(filter(None, (name_of(x) for x in tensors if x.dim() > 1)))
        elif name in BOUNDING and args[0].numel() in sizes:
            clamped.add(name_of(args[0]) or sizes[args[0].numel()])
        return function(*args, **kwargs)

    with intercept_operators(call):
        run()
    return factors, clamped


def _tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _rising(buffer: Tensor) -> bool:
    """Return True if the elements strictly rise in all lines along the last axis, or fall in
    all.
    """
    steps = buffer.diff(dim=-1) if buffer.dim() and buffer.shape[-1] > 1 else buffer.new_zeros(1)
    return bool((steps > 0).all() or (steps < 0).all())


def _respaced(buffer: Tensor, generator: Generator) -> Tensor:
    """Change the steps between neighbours randomly; preserve the first and last value of each
    line.
    """
    import torch

    steps = buffer.double().diff(dim=-1)
    noise = randn(buffer, generator)[..., 1:].double()
    steps = steps * (NOISE * noise).exp()
    length = (buffer[..., -1:] - buffer[..., :1]).double()
    inner = buffer[..., :1].double() + steps.cumsum(-1) * length / steps.sum(-1, keepdim=True)
    return torch.cat([buffer[..., :1].double(), inner], -1).to(buffer.dtype)
