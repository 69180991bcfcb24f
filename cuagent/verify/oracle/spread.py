"""How firm each element of the oracle's answer is: its spread under unit-roundoff perturbation.

Every input and every weight is multiplied by 1 + u N(0,1), some times over; the spread is the rms
change of the answer (docs/reference/rules.md). Runs in the oracle's process, on every draw that
is held to it; what is asked in doubt only is in `doubts`. Integers of the answer are left to
`places`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cuagent.verify.oracle.perturb import perturbed, within
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.tensors import in_blocks, is_inexact

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

KEPT_BYTES = 1 << 28
"""Of perturbed weights."""


@dataclass(frozen=True)
class Spread:
    """Perturbations of the reference with the weights from `seed`."""

    reference: TwoPrecisions
    seed: int
    kept: list[dict[str, Tensor]] = field(default_factory=list)
    """The weights perturbed, once for each perturbation, while they fit: noise takes its time."""

    def measure(
        self,
        inputs: Sequence[Tensor],
        exact: list[Tensor],
        spread: Sequence[Tensor],
        count: int,
        generator: Generator,
    ) -> None:
        """Write to `spread` the rms change of each element of `exact` over `count` perturbations.

        A perturbation that the reference fails on counts as no change, as does one that is no
        number. Weights are put back.
        """
        reference, model = self.reference, self.reference.precise
        given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moving = [index for index, base in enumerate(exact) if is_inexact(base)]
        for index in moving:
            spread[index].zero_()
        try:
            for number in range(count):
                _load(model, self._weights(number, given))
                near = [perturbed(tensor, generator, wide=reference.fp64) for tensor in inputs]
                results = reference.attempted(near)
                results = results or reference.attempted(within(near, inputs)) or exact
                del near
                for index in moving:
                    for total, *both in in_blocks(spread[index], results[index], exact[index]):
                        total += both[0].sub(both[1]).square_().nan_to_num_(0.0, 0.0, 0.0)
                del results
        finally:
            _load(model, given)
        for index in moving:
            for (total,) in in_blocks(spread[index]):
                total.div_(count).sqrt_()

    def _weights(self, number: int, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of one perturbation: the same for all draws, in whatever order these come."""
        if number < len(self.kept):
            return self.kept[number]
        generator = self.reference.generator(self.seed + number)
        near = {name: perturbed(tensor, generator) for name, tensor in given.items()}
        size = sum(tensor.nbytes for tensor in near.values())
        if size * (number + 1) <= KEPT_BYTES:
            self.kept.append(near)
        return near


def _load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    # Its state as it is now: a forward may have put other tensors in the place of its buffers.
    for name, tensor in model.state_dict().items():
        tensor.copy_(weights[name])
