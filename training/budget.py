"""Where the minutes of a demonstration go, and when PPO must end so that what follows fits.

For: runs that are cut off by a clock, where an arm that was not played to its end is lost. What is
still to come is judged by what was like it: an evaluation by the last one, further RFT by PPO.
Invariant: seconds of a stage add up over resumed runs (`seconds.json`), but for what a kill cut off
since they were last written.
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
"""Further RFT plays as many episodes as PPO, and sharpens less, so that fewer are remembered."""


@dataclass
class Budget:
    """The clock of one seed. `end` by time.time(); None: as long as it takes."""

    out: Path
    end: float | None = None
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""
    started: dict[str, float] = field(default_factory=dict)
    """Stages that are under way, by time.time()."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        path = self.out / SECONDS
        if path.exists():
            self.spent |= json.loads(path.read_text(encoding="utf-8"))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What happens meanwhile counts for `name`; stages do not contain each other."""
        self.started[name] = time.time()
        try:
            yield
        finally:
            with self._lock:
                self.spent[name] = self.elapsed(name)
                del self.started[name]
            self.write()

    def write(self) -> None:
        """Keep what was spent, on stages under way too: after a kill it is reckoned with."""
        with self._lock:  # an audit may end beside an evaluation
            names = dict.fromkeys([*self.spent, *self.started])
            rounded = {name: round(self.elapsed(name), 1) for name in names}
            write_atomic(self.out / SECONDS, json.dumps(rounded))

    def elapsed(self, name: str) -> float:
        """Seconds of a stage, up to now where it is under way."""
        now = time.time()
        return self.spent.get(name, 0.0) + now - self.started.get(name, now)

    def remaining(self) -> float:
        """Seconds until the end; infinite where there is none."""
        return float("inf") if self.end is None else self.end - time.time()

    def seconds_after_ppo(self, evaluation: float, further_rft: float) -> float:
        """Seconds of what follows PPO: its evaluation and audit and, where there is further RFT,
        that and its evaluation. `evaluation` is what the last one took; `refinements` is how much
        longer than the first RFT the further ones train."""
        if not further_rft:
            return 2 * evaluation
        return (
            3 * evaluation + further_rft * self.elapsed("rft") + RFT_OVER_PPO * self.elapsed("ppo")
        )

    def summary(self) -> str:
        """All stages in the order in which they ended; for a person."""
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.spent.items())
