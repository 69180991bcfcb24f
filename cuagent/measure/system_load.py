"""Who else uses the machine while something is timed, and where our own processes may run.

Nothing is set here, only read: sessions are held on their processors when they begin
(`worker/session.py`). On Linux /proc tells how much processor time went to processes outside our
own tree; NVML tells clocks, throttling and other processes on the GPU. Where neither is there,
nothing is known and nothing is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BUSY_SHARE = 0.05
"""A share of others from which on a reader is told."""
_SM_CLOCK = 1
_THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, by software for heat, by hardware for heat, by the power brake."""


@dataclass(frozen=True)
class CpuTimes:
    """Processor seconds so far, of all processes and of ours with their children."""

    stamp: float
    all: float
    ours: dict[int, float]
    """By process; each holds what its ended children used."""
    since_boot: float

    def ours_since(self, before: CpuTimes) -> float:
        """What our processes used in between.

        The kernel's list of children may miss one while others come and go: a process that is new
        here but older than `before` was missed there, and is left out.
        """
        return sum(
            seconds - before.ours.get(pid, 0.0)
            for pid, seconds in self.ours.items()
            if pid in before.ours or _started(pid) >= before.since_boot - 0.02
        )


def cpu_times() -> CpuTimes | None:
    """What /proc says now; None where there is no /proc."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    busy = (user + nice + system + irq + softirq + steal) / ticks
    ours = {pid: count / ticks for pid, count in _tree_ticks(os.getpid()).items()}
    return CpuTimes(time.perf_counter(), busy, ours, time.clock_gettime(time.CLOCK_BOOTTIME))


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> float:
    """Share of all processors that others had in between, 0 to 1; 0 where it is not known.

    What our ended children used counts as ours once they are waited for. /proc counts in ticks of
    10 ms, so spans under a second say little.
    """
    if before is None or after is None or after.stamp <= before.stamp:
        return 0.0
    others = (after.all - before.all) - after.ours_since(before)
    return min(1.0, max(0.0, others / (after.stamp - before.stamp) / (os.cpu_count() or 1)))


def _tree_ticks(root: int) -> dict[int, int]:
    """Ticks of each process in a tree, with those of the children it waited for."""
    return {pid: sum(map(int, fields[11:15])) for pid in _tree(root) if (fields := _stat(pid))}


def _started(pid: int) -> float:
    """Seconds from boot to the start of a process; 0 for one that is gone."""
    fields = _stat(pid)
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; none where it is gone."""
    try:
        # The name in brackets may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cores_for(threads: int) -> set[int]:
    """Processors to hold `threads` threads on, no two of one physical core; empty for all of them.

    With more processors than threads, where the threads happen to run decides what a process
    measures, for as long as it lives. So all arms are held on the same ones.
    """
    free = sorted(os.sched_getaffinity(0), reverse=True)
    if threads >= len(free):
        return set()
    chosen: list[int] = []
    taken: set[int] = set()
    for core in free:
        if core not in taken:
            chosen.append(core)
            taken |= _siblings(core)
    spare = [core for core in free if core not in chosen]
    return set((chosen + spare)[:threads])


def threads_outside(pid: int, cores: set[int]) -> int:
    """How many threads of a process and of all below it may run elsewhere than on `cores`.

    0 where there are no `cores` to hold them on. Daemons, which are never woken, do not count.
    """
    processes = 0
    for process in _tree(pid) if cores else ():
        for task in Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                processes += not os.sched_getaffinity(int(task.name)) <= cores
    return processes


def _siblings(core: int) -> set[int]:
    """The processors that share a physical core with this one, itself included."""
    file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    processes = {core}
    with contextlib.suppress(OSError, ValueError):
        for part in file.read_text().strip().split(","):
            first, _, last = part.partition("-")
            processes |= set(range(int(first), int(last or first) + 1))
    return processes


@dataclass(frozen=True)
class GpuState:
    """One reading of NVML."""

    clock: int
    """MHz of the multiprocessors; 0 unknown."""
    slowed: bool
    """By heat or power, not by idleness."""


@cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


@cache
def _gpu() -> ctypes.c_void_p | None:
    """The handle of torch's current device, by its UUID."""
    import torch

    library = _nvml()
    if library is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    handle = ctypes.c_void_p()
    failed = library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    return None if failed else handle


def gpu_state() -> GpuState | None:
    """Clock and throttling of torch's current GPU now; None where NVML does not tell."""
    library, handle = _nvml(), _gpu()
    if library is None or handle is None:
        return None
    clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(clock)):
        return None
    library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    return GpuState(clock.value, bool(reasons.value & _THROTTLED))


def gpu_nominal_clock() -> int:
    """MHz that the multiprocessors may reach; 0 unknown."""
    library, handle = _nvml(), _gpu()
    clock = ctypes.c_uint()
    if library is None or handle is None:
        return 0
    failed = library.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK, ctypes.byref(clock))
    return 0 if failed else clock.value


def gpu_in_use_by_others() -> float:
    """Bytes on the GPU held by processes outside our tree, as far as NVML names them.

    Inside a container or a virtual machine NVML sees only some of them, or none.
    """
    library, handle = _nvml(), _gpu()
    if library is None or handle is None:
        return 0.0
    count = ctypes.c_uint(64)
    processes = (_Process * 64)()
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes):
        return 0.0
    ours = _tree(os.getpid())
    return float(
        sum(p.used for p in processes[: count.value] if p.pid not in ours and p.used >> 60 == 0)
    )


_UNKNOWN = 2**64 - 1


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def _tree(root: int) -> set[int]:
    """A process and everything below it."""
    processes, queue = set(), [root]
    while queue:
        pid = queue.pop()
        processes.add(pid)
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                queue += map(int, (task / "children").read_text().split())
    return processes
