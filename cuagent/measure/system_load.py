"""Measure the load of other processes during a timing, and choose the processors for the timed
ones.

Nothing is set here: sessions bind themselves to their processors when they begin
(`worker/session.py`). On Linux /proc gives the processor time of processes outside our own tree.
NVML gives clocks, throttling and other processes on the GPU. If neither is available, the load is
unknown and reported as 0.
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
"""Share of the processors; a note is shown if other processes use at least this much."""
_SM_CLOCK = 1
_THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""Bit mask of NVML's throttle reasons: hardware slowdown, software thermal, hardware thermal, power
brake."""


@dataclass(frozen=True)
class CpuTimes:
    """Processor seconds used since boot (`all`) and by our own processes (`ours`), at the time
    `stamp`."""

    stamp: float
    all: float
    ours: dict[int, float]
    """Seconds by process id; each includes the process's ended children."""
    since_boot: float

    def ours_since(self, before: CpuTimes) -> float:
        """Return the processor seconds that our processes used since the reading `before`.

        The kernel's list of children may miss one while others start and end. A process that is
        missing from `before` although it ran by then is left out.
        """
        return sum(
            seconds - before.ours.get(pid, 0.0)
            for pid, seconds in self.ours.items()
            if pid in before.ours or _started(pid) >= before.since_boot - 0.02
        )


def cpu_times() -> CpuTimes | None:
    """Read the processor times from /proc now; None if there is no /proc."""
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
    """Return the share of all processors that other processes used between two readings; 0 if
    unknown.

    The time of our ended children counts as ours once they are waited for. /proc counts in ticks of
    10 ms, so spans under a second are imprecise.
    """
    if before is None or after is None or after.stamp <= before.stamp:
        return 0.0
    others = (after.all - before.all) - after.ours_since(before)
    return min(1.0, max(0.0, others / (after.stamp - before.stamp) / (os.cpu_count() or 1)))


def _tree_ticks(root: int) -> dict[int, int]:
    """Return the clock ticks used by each process of the tree below `root`, with its ended
    children."""
    return {pid: sum(map(int, fields[11:15])) for pid in _tree(root) if (fields := _stat(pid))}


def _started(pid: int) -> float:
    """Return the seconds from boot to the start of the process `pid`; 0 if it has ended."""
    fields = _stat(pid)
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; [] if the process has ended."""
    try:
        # The name in brackets may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cores_for(threads: int) -> set[int]:
    """Choose processors for `threads` threads, each on a different physical core if possible.

    Returns an empty set if all processors are needed. With more processors than threads, the
    placement of the threads changes the times of a process for its whole life. So all arms are
    bound to the same processors.
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
    """Count the threads of a process and its descendants that may run on processors outside
    `cores`.

    It is 0 if `cores` is empty. Processes that left the tree (daemons) do not count, because they
    are never resumed.
    """
    outside = 0
    for process in _tree(pid) if cores else ():
        for task in Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                outside += not os.sched_getaffinity(int(task.name)) <= cores
    return outside


def _siblings(core: int) -> set[int]:
    """Return the logical processors on the same physical core as `core`, which is included."""
    file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    siblings = {core}
    with contextlib.suppress(OSError, ValueError):
        for part in file.read_text().strip().split(","):
            first, _, last = part.partition("-")
            siblings |= set(range(int(first), int(last or first) + 1))
    return siblings


@dataclass(frozen=True)
class GpuState:
    """Clock and throttling of the GPU at one moment."""

    clock: int
    """Clock of the multiprocessors in MHz; 0 if unknown."""
    slowed: bool
    """True if heat or power limits the clock; a clock that is low because of idleness does not
    count."""


@cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


@cache
def _gpu() -> ctypes.c_void_p | None:
    """Return NVML's handle of torch's current device, found by its UUID; None if there is none."""
    import torch

    library = _nvml()
    if library is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    handle = ctypes.c_void_p()
    failed = library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    return None if failed else handle


def gpu_state() -> GpuState | None:
    """Return clock and throttling of torch's current GPU; None if NVML is unavailable."""
    library, handle = _nvml(), _gpu()
    if library is None or handle is None:
        return None
    clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(clock)):
        return None
    library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    return GpuState(clock.value, bool(reasons.value & _THROTTLED))


def gpu_nominal_clock() -> int:
    """Return the highest clock of the multiprocessors in MHz; 0 if unknown."""
    library, handle = _nvml(), _gpu()
    clock = ctypes.c_uint()
    if library is None or handle is None:
        return 0
    failed = library.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK, ctypes.byref(clock))
    return 0 if failed else clock.value


def gpu_in_use_by_others() -> float:
    """Return the bytes of GPU memory of processes outside our own tree, as far as NVML lists them.

    In a container or a virtual machine NVML lists only some of them, or none.
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
    """Return the process ids of a process and all its descendants."""
    processes, queue = set(), [root]
    while queue:
        pid = queue.pop()
        processes.add(pid)
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                queue += map(int, (task / "children").read_text().split())
    return processes
