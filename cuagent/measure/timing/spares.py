"""Baselines' processes that were opened for later rounds of a record timing.

Each round needs fresh processes, and on a GPU most of a round is their opening. So those of several
rounds open at the same time, as far as memory admits. They have made their first call and are
stopped, like all sessions between two commands, until their round takes them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cuagent.measure.timing.rounds import LOOKS
from cuagent.measure.timing.surroundings import free_memory
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.task import memory
from cuagent.verify.referee import Referee

SHARE = 0.5
"""Largest share of the free memory that the processes of several rounds may take together.

When the processes of a task of 3 GB a call all stayed open, a round took three times as long for an
unknown reason.
"""
PROCESS_BYTES = 1 << 29
"""Assumed GPU memory in bytes of a process without its tensors."""
HOST_BYTES = 1 << 30
"""Assumed memory in bytes that a process takes of the host."""


class Spares:
    """Opened processes of baselines by name; `close` ends those that were not taken."""

    def __init__(self) -> None:
        self._of: dict[str, list[TimedArm]] = {}

    def __contains__(self, name: str) -> bool:
        return bool(self._of.get(name))

    def add(self, name: str, timed_arm: TimedArm) -> None:
        """Keep the process of a baseline for a later round."""
        self._of.setdefault(name, []).append(timed_arm)

    def take(self, name: str) -> TimedArm:
        """Return a process of this baseline; the caller owns it."""
        return self._of[name].pop()

    def close(self, kept: Collection[str] = ()) -> None:
        """End the processes of all baselines, except those named in `kept`."""
        for name in self._of.keys() - set(kept):
            while self._of[name]:
                self._of[name].pop().session.close()


def copies(names: Sequence[str], fresh: Collection[str], rounds: int) -> dict[str, str]:
    """Return the processes to open for `rounds` rounds: the baseline by the process's name.

    The first process has the baseline's own name. Those in `fresh` have one in each round; the
    processes of one round follow each other.
    """
    later = {f"{name} of round {k}": name for k in range(1, rounds) for name in names}
    return {n: n for n in names} | {key: name for key, name in later.items() if name in fresh}


def rounds_at_once(referee: Referee, rounds_done: int, arms: int) -> int:
    """Return the number of rounds of a record timing whose processes open at the same time.

    They are those until the next look, or as many as have room in `SHARE` of the free memory; at
    least one. `arms` is the number of processes in a round.
    """
    until_look = next((look for look in LOOKS.rounds if look > rounds_done), 1 + rounds_done)
    free, host = free_memory(referee.task.device), memory.free()
    for rounds in range(until_look - rounds_done, 1, -1):
        processes = rounds * arms
        needed = processes * (PROCESS_BYTES + referee.facts.layouts.state.size)
        on_device = free is None or needed + referee.room.timing(processes) <= SHARE * free
        if on_device and processes * HOST_BYTES <= SHARE * host:
            return rounds
    return 1
