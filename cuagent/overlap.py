"""Decide which steps of a judgement run in parallel: compiling, verifying and opening processes.

If one judge uses the device, waiting costs most: the verification's processes open while the
compiler runs, and on a GPU those of the timing too. On a shared device, processes cost most: the
driver creates their contexts one after another for all judges, so each step starts only when the
step before it has succeeded. An accepted attempt needs three contexts, a wrong one needs one, and a
failed build needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cuagent.task import Device

BUSY_BYTES = 256 << 20
"""Least size in bytes of one call's inputs and outputs for which a verification uses a GPU
fully.
"""


class Prewarm(StrEnum):
    """Time at which the processes of a timing open."""

    WHILE_BUILDING = "while building"
    WHEN_TIMED = "when timed"


@dataclass(frozen=True)
class Overlap:
    """Steps of a judgement that run in parallel."""

    begin_while_building: bool
    """True if the verification's processes open while the sources are compiled."""
    prewarm: Prewarm
    prewarm_profile: bool
    """True if the process of the next profile opens right after a profile.

    An agent often profiles its next attempt.
    """
    open_while_verifying: bool
    """True if rungs for a later timing may also open during a verification.

    False for large tensors on a GPU, where autotuning and verification compete: a verification of 2
    GB took 68 s instead of 5 s (H200).
    """

    @staticmethod
    def on(device: Device, *, shared: bool, large: bool, bytes_per_call: int) -> Overlap:
        """Return which steps overlap on a device.

        `shared`: True if judges of other processes use the device. `large`: True if the task's
        memory leaves no room for idle processes (`Referee.large`). `bytes_per_call`: bytes of the
        inputs and outputs of one call.
        """
        if device is Device.CUDA and not shared:
            prewarm = Prewarm.WHILE_BUILDING
        else:  # a prewarming process would use the processors that the compiler needs
            prewarm = Prewarm.WHEN_TIMED
        return Overlap(
            begin_while_building=not shared,
            prewarm=Prewarm.WHEN_TIMED if large else prewarm,
            prewarm_profile=not shared and not large,
            open_while_verifying=device is Device.CPU or bytes_per_call < BUSY_BYTES,
        )
