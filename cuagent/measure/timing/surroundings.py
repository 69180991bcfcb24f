"""Environment of timed arms: processors, threads, memory, compile caches."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import cache_bytes
from cuagent.task import Device
from cuagent.verify.referee import Referee
from cuagent.worker.user_caches import INDUCTOR, user_caches

MAX_SLOTS, MIN_SLOTS, USUAL_SLOTS = 24, 2, 8
"""Largest, smallest and usual number of input sets in a batch, without the set for warming up."""
MEMORY = 1 << 30
"""Most bytes for the input and output sets of a batch, unless `MIN_SLOTS` sets need more."""


@contextmanager
def one_thread(device: Device) -> Iterator[None]:
    """Limit the referee to one torch thread within the block, if the device is a CPU.

    Its idle threads would otherwise spin while an arm is timed.
    """
    import torch

    threads = torch.get_num_threads()
    if device is Device.CPU:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores_of(referee: Referee) -> set[int]:
    """Return the processors that all arms are bound to, one for each thread of torch.

    The set is empty if the arms may use all processors.
    """
    on_cpu = referee.task.device is Device.CPU
    return system_load.cores_for(referee.fork_server.threads) if on_cpu else set()


def free_memory(device: Device) -> int | None:
    """Return the free memory of the GPU in bytes; None on a CPU."""
    import torch

    return torch.cuda.mem_get_info()[0] if device is Device.CUDA else None


COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"


def compiled_graphs(*, again: bool = False) -> dict[str, str]:
    """Return environment variables that put torch.compile's caches into the user's cache folder.

    Candidates cannot write there. With `again` the graph is in the cache already, and the process
    starts no compiler processes. Otherwise torch starts a Python with sixteen processes, which
    imports torch for five seconds while the arm is timed.
    """
    base = user_caches()
    given = {COMPILERS: os.environ[COMPILERS]} if COMPILERS in os.environ else {}
    return (
        given
        | ({COMPILERS: "1"} if again else {})
        | {
            "TORCHINDUCTOR_CACHE_DIR": str(base / INDUCTOR),
            "TRITON_CACHE_DIR": str(base / "triton"),
            "HOME": str(Path.home()),
        }
    )


def versions() -> dict[str, str]:
    """Return the versions of torch and Python that the arms use, by name."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}


def slots_for(referee: Referee) -> int:
    """Return the number of input sets in a batch, without the set for warming up.

    It is 0 for a large task, which has only that set. On the CPU nothing flushes the cache, so all
    sets together are twice as large as the cache.
    """
    if referee.large:
        return 0
    device, size = referee.task.device, max(1, referee.bytes_per_call)
    wanted = MAX_SLOTS
    if device is Device.CPU:
        wanted = min(wanted, max(USUAL_SLOTS, 1 + 2 * cache_bytes(device) // size))
    return max(MIN_SLOTS, min(wanted, MEMORY // size))
