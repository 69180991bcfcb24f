"""Track the wall time of a demonstration's stages, and predict the time of the stages after PPO.

A run with a time limit must leave enough time for the stages after PPO, because an unfinished arm
is lost. An evaluation is predicted to take as long as the last one. Further RFT is predicted from
the times of RFT and PPO.
Invariant: a stage's seconds add up over resumed runs (`seconds.json`). Only the time between the
last write and a kill is lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuagent.training.files import write_atomic

SECONDS = "seconds.json"
EVALUATION = "evaluation"
RFT_OVER_PPO = 1.2
"""Ratio of the time of further RFT to the time of PPO, for the same number of episodes. PPO makes
the policy repeat its kernels more, so more of them are in the judgement cache."""


@dataclass
class Budget:
    """Wall time of one seed: seconds by stage, and the time limit `end` (a time.time() value; None:
    no limit)."""

    out: Path
    end: float | None = None
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds spent in each stage, by the stage's name."""
    started: dict[str, float] = field(default_factory=dict)
    """Start of each running stage, by the stage's name, as a time.time() value."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        path = self.out / SECONDS
        if path.exists():
            self.spent |= json.loads(path.read_text(encoding="utf-8"))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside this context to the stage `name`; stages must not be nested."""
        self.started[name] = time.time()
        try:
            yield
        finally:
            with self._lock:
                self.spent[name] = self.elapsed(name)
                del self.started[name]
            self.write()

    def write(self) -> None:
        """Write the seconds of all stages, running ones included, so that they survive a kill."""
        with self._lock:  # an audit and an evaluation may end at the same time
            names = dict.fromkeys([*self.spent, *self.started])
            rounded = {name: round(self.elapsed(name), 1) for name in names}
            write_atomic(self.out / SECONDS, json.dumps(rounded))

    def elapsed(self, name: str) -> float:
        """Return the seconds of a stage so far; 0 if it has not started."""
        now = time.time()
        return self.spent.get(name, 0.0) + now - self.started.get(name, now)

    def remaining(self) -> float:
        """Return the seconds until the time limit; infinite without a limit."""
        return float("inf") if self.end is None else self.end - time.time()

    def seconds_after_ppo(self, evaluation: float, further_rft: float) -> float:
        """Return the predicted seconds of the stages after PPO.

        The stages are PPO's evaluation and audit and, if there is further RFT, further RFT and its
        evaluation. `evaluation`: seconds of the last evaluation; `further_rft`: steps of further
        RFT as a multiple of the first RFT's, 0 for none.
        """
        if not further_rft:
            return 2 * evaluation
        return (
            3 * evaluation + further_rft * self.elapsed("rft") + RFT_OVER_PPO * self.elapsed("ppo")
        )

    def summary(self) -> str:
        """Return the seconds of all stages as text, in the order in which they ended."""
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.spent.items())
