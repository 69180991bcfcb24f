"""Measure the spread of each element of the oracle's answer under unit-roundoff perturbation.

Every input and weight is multiplied by 1 + u N(0,1) several times; the spread is the rms change of
the answer (docs/reference/rules.md). Runs in the oracle's process, on every draw that can reject a
candidate. `sensitivity` measures what is needed only before a rejection. `places` handles integers
of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cuagent.verify.oracle.perturb import clamped_to_range, perturbed
from cuagent.verify.oracle.sliced_answers import measure_spread
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.tensors import in_blocks, is_inexact

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

STORED_BYTES = 1 << 28
"""Largest size in bytes of all perturbed weights that are stored."""


@dataclass(frozen=True)
class Spread:
    """Measures the spread of a reference's answers; `seed` determines the perturbed weights."""

    reference: TwoPrecisions
    seed: int
    stored_weights: list[dict[str, Tensor]] = field(default_factory=list)
    """Perturbed weights by perturbation number, stored up to STORED_BYTES to save the time of
    drawing.
    """

    def measure(
        self,
        inputs: Sequence[Tensor],
        exact: list[Tensor],
        spread: Sequence[Tensor],
        count: int,
        generator: Generator,
    ) -> None:
        """Write to `spread` the rms change of each element of `exact` over `count` perturbations.

        A run that fails, or a change that is not a number, counts as no change. Weights are
        restored.
        """
        import torch

        reference, model = self.reference, self.reference.precise
        if reference.slicing is not None:
            self._measure_slices(inputs, exact, spread, count, generator)
            return
        originals = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moving = [index for index, exact_output in enumerate(exact) if is_inexact(exact_output)]
        target = spread
        # Squares of small numbers need the range of fp64, which a large task's spread lacks.
        spread = [
            torch.zeros_like(y) if s.dtype != y.dtype else s
            for s, y in zip(spread, exact, strict=True)
        ]
        for index in moving:
            spread[index].zero_()
        try:
            for number in range(count):
                _load(model, self._weights(number, originals))
                inputs_nearby = [
                    perturbed(tensor, generator, wide=reference.fp64) for tensor in inputs
                ]
                results = reference.run_fp64_or_none(inputs_nearby)
                results = (
                    results
                    or reference.run_fp64_or_none(clamped_to_range(inputs_nearby, inputs))
                    or exact
                )
                del inputs_nearby
                for index in moving:
                    for total, *both in in_blocks(spread[index], results[index], exact[index]):
                        total += both[0].sub(both[1]).square_().nan_to_num_(0.0, 0.0, 0.0)
                del results
        finally:
            _load(model, originals)
        for index in moving:
            for (total,) in in_blocks(spread[index]):
                total.div_(count).sqrt_()
            if spread[index] is not target[index]:
                target[index].copy_(spread[index])

    def _measure_slices(
        self,
        inputs: Sequence[Tensor],
        exact: list[Tensor],
        spread: Sequence[Tensor],
        count: int,
        generator: Generator,
    ) -> None:
        reference, model = self.reference, self.reference.precise
        slicing = reference.slicing
        assert slicing is not None
        originals = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            measure_spread(
                slicing,
                reference.run_fp64_or_none,
                inputs,
                exact,
                spread,
                count,
                generator,
                lambda number: _load(model, self._weights(number, originals)),
                wide=reference.fp64,
            )
        finally:
            _load(model, originals)

    def _weights(self, number: int, originals: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of perturbation number `number`; they are the same for every draw.

        `originals` are the unperturbed weights.
        """
        if number < len(self.stored_weights):
            return self.stored_weights[number]
        generator = self.reference.generator(self.seed + number)
        inputs_nearby = {name: perturbed(tensor, generator) for name, tensor in originals.items()}
        size = sum(tensor.nbytes for tensor in inputs_nearby.values())
        if size * (number + 1) <= STORED_BYTES:
            self.stored_weights.append(inputs_nearby)
        return inputs_nearby


def _load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    # Read the state dict anew, because forward may have replaced its buffers.
    for name, tensor in model.state_dict().items():
        tensor.copy_(weights[name])
