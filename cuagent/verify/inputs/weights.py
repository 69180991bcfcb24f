"""Kinds of weights for a verdict, derived from the constructor's weights and a secret seed.

Buffers other than running statistics (masks, tables) keep their values, except in grown weights,
which replace those buffers that the reference accepts with other values (`trace.roles`).
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.verify.inputs.random_values import randn, seeded, shuffled_values
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.roles import FEW_NUMBERS, Roles, changed_buffer

if TYPE_CHECKING:
    from torch import Generator, Tensor

WHOLE = (2, -1, 1, 0, -2)
"""Values of gains, slopes and biases in Weights.INTEGER."""
SMALL = 2.0**-8
"""Factor on the weights in Weights.SMALL."""
SUNK = 1e4
"""Number subtracted from biases in Weights.SUNK."""
TINY_GAIN = 1e-3
"""Rms below which a parameter with one value throughout (a layer's scale) counts as nearly zero."""
GROWTH = (5.0, -5.0, 2.0, -2.0, 1.0, -1.0, 0.5, -0.5)
"""Numbers added to the elements of vectors in Weights.GROWN.

The largest come first: a short vector gets only the first ones.
"""
PAST_CLAMPS = (24.0, -24.0, 8.0, -8.0)
"""Numbers added to clamped vectors in Weights.PAST, so that both clamp limits apply; largest first.
"""
LOWERED = 3.0
"""Least number subtracted from unclamped vectors in Weights.PAST.

Without it a bias of -0.5 often kept one score above -1, the initial value of a wrong search for the
maximum.
"""
NUMBER, NUMBER_PAST = 5.0, 24.0
"""Numbers added to a parameter of one or two elements in grown weights: usually, and if it is
clamped.
"""
GROWN_SIZE = 2.0
"""Rms of the noise added to tensors of several axes in Weights.GROWN."""
SMALL_VARIANCE = 2.0**-10
"""Factor on every second running variance in Weights.SHAKEN; the gain compensates it.

A kernel with a wrong epsilon then gives a visibly wrong output.
"""


class Weights(StrEnum):
    """Kinds of weights with which a verdict calls a model. Logs contain their values."""

    OWN = "own"
    """Weights as the constructor draws them."""
    SHAKEN = "shaken"
    """Weights with noise, which removes special initial values: a fresh BatchNorm or LayerNorm does
    not scale or shift."""
    SMALL = "small"
    """All weights except gains times 2^-8, so that a following norm divides mostly by its epsilon.

    Clamped numbers are scaled too, so that a lower limit (of a temperature) applies.
    """
    SUNK = "sunk"
    """Shaken weights, with 1e4 subtracted from all biases except those of norms: products become
    very negative, and their mean is far larger than their variation."""
    GROWN = "grown"
    """Shaken weights; parameters that are not a factor of a product are changed by 0.5 to 5 of both
    signs, and buffers are replaced, so that added scores, gains and thresholds have an effect."""
    PAST = "grown past clamps"
    """Grown weights, with clamped parameters changed by 8 to 24 and all others lowered by 3.5 to 8:
    a search for the largest that begins at zero or -1 then finds nothing."""
    INTEGER = "integer"
    """Weights -1, 0 or 1; gains, slopes and biases -2 .. 2."""


def derive_weights(
    kind: Weights,
    state: dict[str, Tensor],
    parameters: frozenset[str],
    seed: int,
    roles: Roles | None = None,
    *,
    positive: bool = False,
) -> dict[str, Tensor]:
    """Return a state dict of `kind`, derived from the constructor's state dict.

    `parameters` are the names of the model's parameters. `roles` names the parameters and buffers
    that grown weights change. `positive` adds positive amounts only, for references that take a
    logarithm of a parameter.
    """
    if kind is Weights.OWN:
        return state
    generator = seeded(list(state.values()), seed)
    if kind in (Weights.GROWN, Weights.PAST):
        shaken = derive_weights(Weights.SHAKEN, state, parameters, seed)
        return _grown(kind, shaken, roles or Roles(), generator, positive=positive)
    changed = dict(state)
    for name, tensor in state.items():
        if is_inexact(tensor):
            learned = name in parameters or name.endswith("running_mean")
            limited = roles is not None and name in roles.clamped and tensor.numel() <= FEW_NUMBERS
            if kind is Weights.SMALL and limited:
                changed[name] = tensor * SMALL
            elif learned:
                changed[name] = _weighted(kind, name, tensor, generator)
            elif kind is Weights.SHAKEN and name.endswith("running_var"):
                changed[name] = tensor * (0.3 * randn(tensor, generator)).exp()
    if kind is Weights.SHAKEN:
        _narrow(changed)
    if kind is Weights.SUNK:
        changed |= {name: changed[name] - SUNK for name in parameters if _of_product(name, state)}
    return changed


def shared_names(state: dict[str, Tensor]) -> frozenset[str]:
    """Return the names in a state dict whose tensors share the memory of another one."""
    places = {name: (x.data_ptr(), x.shape) for name, x in state.items() if x.numel()}
    counts = Counter(places.values())
    return frozenset(name for name, place in places.items() if counts[place] > 1)


def _weighted(kind: Weights, name: str, tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    if tensor.is_complex():
        both = torch.view_as_real(tensor.resolve_conj()).unbind(-1)
        return torch.complex(*(_weighted(kind, name, part, generator) for part in both))
    match kind:
        case Weights.INTEGER if tensor.dim() < 2:
            return shuffled_values(WHOLE, tensor, generator).to(tensor.dtype)
        case Weights.INTEGER:
            return randn(tensor, generator).round().clamp(-1, 1).to(tensor.dtype)
        case Weights.SMALL:
            gain = tensor.dim() < 2 and "bias" not in name
            return tensor if gain else tensor * SMALL
        case _:
            return _noisy(tensor, generator)


def _grown(
    kind: Weights, state: dict[str, Tensor], roles: Roles, generator: Generator, *, positive: bool
) -> dict[str, Tensor]:
    changed = dict(state)
    for name in sorted(roles.added):
        tensor, clamped = state[name], name in roles.clamped and kind is Weights.PAST
        if tensor.numel() <= FEW_NUMBERS:
            step = NUMBER_PAST if name in roles.clamped else NUMBER
            by = tensor.new_full(tensor.shape, step if kind is Weights.GROWN else -step)
        elif tensor.dim() < 2 or tensor.numel() == max(tensor.shape):
            by = shuffled_values(PAST_CLAMPS if clamped else GROWTH, tensor, generator)
            if kind is Weights.PAST and not clamped:
                by = -by.abs() - LOWERED
        else:
            by = GROWN_SIZE * randn(tensor, generator)
        changed[name] = (tensor + (by.abs() if positive else by)).to(tensor.dtype)
    for name in sorted(roles.buffers):
        changed[name] = changed_buffer(state[name], generator)
    return changed


def _of_product(name: str, state: dict[str, Tensor]) -> bool:
    """Return True if parameter `name` is the bias of a linear or convolution layer."""
    weight = state.get(name.replace("bias", "weight"))
    return (
        "bias" in name
        and state[name].is_floating_point()
        and not (weight is not None and weight is not state[name] and weight.dim() < 2)
    )


def _narrow(state: dict[str, Tensor]) -> None:
    """Multiply every second running variance by SMALL_VARIANCE, in place.

    The gain gets its root as a factor, so that the outputs keep their size.
    """
    for name in [name for name in state if name.endswith("running_var")]:
        gain = state.get(name.removesuffix("running_var") + "weight")
        if gain is not None and gain.shape == state[name].shape:
            state[name], gain = state[name].clone(), gain.clone()
            state[name][::2] *= SMALL_VARIANCE
            gain[::2] *= SMALL_VARIANCE**0.5
            state[name.removesuffix("running_var") + "weight"] = gain


def _noisy(tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    noise, wide = randn(tensor, generator), tensor.float()
    rms = wide.square().mean().sqrt() if tensor.numel() else wide.sum()
    learned_scale = tensor.numel() < 2 or rms >= TINY_GAIN or bool((wide != wide.view(-1)[0]).any())
    scale = torch.where((rms > 0) & learned_scale, rms, torch.ones_like(rms))
    return (wide + 0.2 * scale * noise).to(tensor.dtype)
