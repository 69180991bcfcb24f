"""Keep the weights with the lowest held-out loss, and detect that this loss has stopped falling.

The loss is RFT's held-out loss, or PPO's negative held-out reward.
Invariant: the stage's checkpoints contain the whole state, so a resumed stage decides like an
uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuagent.training.policy.checkpoint import (
    Modules,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

FOLDER = "best"


class BestWeights:
    """Tracks the lowest held-out loss of a stage, and saves the weights that reached it under
    `out/best`."""

    def __init__(self, out: Path, position: Mapping[str, Any]) -> None:
        """Restore the state from `position`, the counters of a checkpoint; an empty mapping means a
        new stage."""
        self.out = out / FOLDER
        known = position.get("best_loss")
        self.loss = math.inf if known is None else float(known)
        self.step = int(position.get("best_step", 0))
        self.since = int(position.get("since_best", 0))
        """Number of evaluations since the evaluation with the best score."""

    @property
    def position(self) -> dict[str, Any]:
        """Return the state to store in a checkpoint."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {"best_loss": loss, "best_step": self.step, "since_best": self.since}

    def see(self, step: int, loss: float, modules: Modules) -> None:
        """Save the weights if `loss` is the lowest so far. NaN never counts as lowest."""
        if not loss < self.loss:
            self.since += 1
            return
        self.loss, self.step, self.since = loss, step, 0
        save_checkpoint(self.out, step, modules, {}, {}, keep=1)

    def is_over(self, patience: int | None) -> bool:
        """Return True if the last `patience` evaluations did not lower the loss; always False for
        None."""
        return patience is not None and self.since >= patience

    def restore(self, modules: Modules) -> None:
        """Load the best weights into `modules`; do nothing if none were saved."""
        if (found := latest_checkpoint(self.out)) is not None:
            load_checkpoint(found, modules, {})
