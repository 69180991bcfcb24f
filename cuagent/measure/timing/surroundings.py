"""What the arms of a timing run in: processors, threads, memory, caches of compiled graphs."""

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

MOST_SLOTS, FEWEST_SLOTS, USUAL_SLOTS = 24, 2, 8
MEMORY = 1 << 30
"""Bytes of input and output sets at most, beyond the fewest."""


@contextmanager
def one_thread(device: Device) -> Iterator[None]:
    """Keep the referee's own thread pool asleep, or it spins while an arm is timed."""
    import torch

    threads = torch.get_num_threads()
    if device is Device.CPU:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores_of(referee: Referee) -> set[int]:
    """Where all arms are held, empty for everywhere: as many as eager has threads."""
    on_cpu = referee.task.device is Device.CPU
    return system_load.cores_for(referee.fork_server.threads) if on_cpu else set()


def free_memory(device: Device) -> int | None:
    """Bytes of the GPU that nobody has taken; None on a CPU."""
    import torch

    return torch.cuda.mem_get_info()[0] if device is Device.CUDA else None


def compiled_graphs() -> dict[str, str]:
    """Where torch.compile keeps what it compiled: ours, and no candidate can write there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuagent"
    threads = "TORCHINDUCTOR_COMPILE_THREADS"
    return {name: os.environ[name] for name in (threads,) if name in os.environ} | {
        "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "HOME": str(Path.home()),
    }


def versions() -> dict[str, str]:
    """Of what the arms run on."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}


def slots_for(referee: Referee) -> int:
    """Input sets beside the one to warm up on, which is the only one of a large task.

    On the CPU as many as fill its cache twice over, since nothing flushes it.
    """
    if referee.large:
        return 0
    device, size = referee.task.device, max(1, referee.bytes_per_call)
    wanted = MOST_SLOTS
    if device is Device.CPU:
        wanted = min(wanted, max(USUAL_SLOTS, 1 + 2 * cache_bytes(device) // size))
    return max(FEWEST_SLOTS, min(wanted, MEMORY // size))
