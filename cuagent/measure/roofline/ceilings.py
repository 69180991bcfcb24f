"""Measure a device's ceilings, its highest copy bandwidth and matrix rates, and cache them.

They are measured with a large copy and torch's matrix product, not taken from datasheets. On a CPU
the copy is torch's or one with streaming stores, whichever is faster: an ordinary store first reads
the line that it overwrites, which is avoidable traffic.

Not covered: caches, special functions, launch overhead.

Invariant: a ceiling is the highest rate ever measured. If other processes used the machine then,
the ceilings are not `calm`: they are measured again at the next opportunity, and until then no
candidate is suspected because of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from ctypes import CDLL, c_int64, c_void_p
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.kernels import CompilerMissing
from cuagent.measure.system_load import cpu_times, others_share
from cuagent.task import TorchSettings
from cuagent.task.flags import flags_set
from cuagent.task.task import Device

if TYPE_CHECKING:
    import torch

FORMAT = 3
"""Version of the cache entries. Increase it when the measurement changes, so that older entries are
ignored."""
QUIET_SHARE = 0.1
"""Largest share of the processors that other processes may use while a CPU's ceilings are measured;
above it the result is not `calm`."""
REMEASURE_AFTER_S = 600.0
"""Seconds after which ceilings from a busy machine are measured again."""
STREAMING = """
#include <cstdint>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
extern "C" void copy(float* y, const float* x, int64_t n) {
#ifdef __SSE2__
    for (int64_t i = 0; i + 4 <= n; i += 4) _mm_stream_ps(y + i, _mm_loadu_ps(x + i));
    _mm_sfence();
#else
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
#endif
}
"""
"""C++ source of a copy with streaming stores. The part of each thread must begin at a multiple of
16 bytes."""
RATES = ("copy", "fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Ceilings:
    """Highest measured rates of a device: `copy` in bytes per second (read plus written), the
    others in FLOP per second of matrix products.

    A rate is 0 if the device does not support that precision.
    """

    device: str
    """Name of the GPU, or of the processor with torch's number of threads."""
    copy: float
    fp32: float
    tf32: float
    bf16: float
    fp16: float = 0.0
    cache_bytes: int = 0
    """Size of the last-level cache in bytes. Traffic of less than twice this size may never reach
    memory."""
    calm: bool = True
    """True if other processes were idle in at least one of the measurements."""
    again_s: float = 0.0
    """Time of the last measurement with `remeasure`, in seconds since the epoch; 0 without one."""

    def highest(self, other: Ceilings) -> Ceilings:
        """Return ceilings with the higher value of `self` and `other` for each rate."""
        rates = {n: max(getattr(self, n), getattr(other, n)) for n in RATES}
        again_s = max(self.again_s, other.again_s)
        return replace(self, **rates, calm=self.calm or other.calm, again_s=again_s)

    def rate(self, precision: str) -> float:
        """Return the FLOP per second of products in `fp32`, `tf32`, `bf16` or `fp16`, at least
        fp32's rate."""
        return max(float(getattr(self, precision, 0.0)), self.fp32)


def ceilings(
    device: Device,
    *,
    cache: Path | None = None,
    remeasure: bool = False,
    recent_s: float = 0.0,
    alone: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Ceilings:
    """Return the ceilings of `device` on this machine, from the cache or measured in about 2 s.

    Pass `remeasure` if a result is faster than the ceilings allow: they are measured again, and the
    highest rates are kept. Ceilings that any process measured again in the last `recent_s` seconds
    are returned as they are. `cache` is a folder, by default `cuagent/` in the user's cache folder.
    If it cannot be read or written, the ceilings are measured each time. `alone` returns a context
    in which no other process uses the device; it is entered only for a measurement.
    """
    import torch

    name = describe(device)
    key = hashlib.sha256(f"{FORMAT}|{name}|{torch.__version__}".encode()).hexdigest()[:16]
    file = (cache or _user_cache()) / f"ceilings-{key}.json"
    asked = time.time()
    if (cached := _valid(file, asked - recent_s, remeasure=remeasure)) is not None:
        return cached
    with alone():
        # Another process may have measured them while this one waited for the device.
        if (cached := _valid(file, asked - recent_s, remeasure=remeasure)) is not None:
            return cached
        before = cpu_times()
        measured = _measure_cuda(name) if device is Device.CUDA else _measure_cpu(name)
        busy = others_share(before, cpu_times())
    calm = device is Device.CUDA or busy < QUIET_SHARE
    measured = replace(measured, calm=calm, again_s=time.time() if remeasure else 0.0)
    cached = _read(file)
    highest = measured if cached is None else measured.highest(cached)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(highest)))
        partial.replace(file)
    except OSError:
        pass
    return highest


def _valid(file: Path, since: float, *, remeasure: bool) -> Ceilings | None:
    """Return the stored ceilings; None if they must be measured.

    `remeasure`: only ceilings that were measured again after the time `since` are valid.
    """
    cached = _read(file)
    if cached is None or not (cached.calm or _age(file) < REMEASURE_AFTER_S):
        return None
    return None if remeasure and cached.again_s <= since else cached


def _age(file: Path) -> float:
    """Return the seconds since a file was written; infinity if it does not exist."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return float("inf")


def _read(file: Path) -> Ceilings | None:
    """Return the ceilings stored in a file; None if it is missing, unreadable or implausible."""
    try:
        cached = Ceilings(**json.loads(file.read_text()))
        return cached if cached.copy > 0 and cached.fp32 > 0 else None
    except (OSError, ValueError, TypeError):
        return None


def describe(device: Device) -> str:
    """Return the name of the device, e.g. `NVIDIA H200` or `Intel(R) Xeon(R) CPU, 2 threads`."""
    import torch

    if device is Device.CUDA:
        return torch.cuda.get_device_name()
    return f"{_processor()}, {torch.get_num_threads()} threads"


def cache_bytes(device: Device) -> int:
    """Return the size of the last-level cache in bytes; 32 MiB if it is unknown."""
    import torch

    if device is Device.CUDA:
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    sizes = [
        _parse_size(file.read_text().strip())
        for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=32 << 20)


def _measure_cuda(name: str) -> Ceilings:
    import torch

    # Source and target together take a quarter of the free memory, so that the task's own data fits
    # too.
    copy = _copy_rate(Device.CUDA, min(1 << 28, torch.cuda.mem_get_info()[0] // 32))
    with flags_set(TorchSettings().with_ieee().flags):
        fp32 = _matrix_rate(Device.CUDA, torch.float32, 4096)
    with flags_set(TorchSettings().with_tf32().flags):
        tf32 = _matrix_rate(Device.CUDA, torch.float32, 8192)
    bf16 = _matrix_rate(Device.CUDA, torch.bfloat16, 8192)
    fp16 = _matrix_rate(Device.CUDA, torch.float16, 8192)
    torch.cuda.empty_cache()
    return Ceilings(name, copy, fp32, tf32, bf16, fp16, cache_bytes(Device.CUDA))


def _measure_cpu(name: str) -> Ceilings:
    import torch

    copy = max(_copy_rate(Device.CPU, 1 << 25), _streaming_rate(1 << 25))
    fp32 = _matrix_rate(Device.CPU, torch.float32, 1536)
    # Without hardware support bf16 runs a hundred times slower than fp32, so the product is small.
    bf16 = _matrix_rate(Device.CPU, torch.bfloat16, 256)
    return Ceilings(name, copy, fp32, 0.0, bf16, 0.0, cache_bytes(Device.CPU))


def _copy_rate(device: Device, count: int) -> float:
    """Return the bytes per second, read plus written, of a copy of `count` floats."""
    import torch

    source = torch.randn(count, device=device.value)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(device, lambda: target.copy_(source))


def _streaming_rate(count: int) -> float:
    """Return the bytes per second, read plus written, of a copy of `count` floats with `STREAMING`.

    It uses torch's number of threads. Returns 0 if there is no compiler.
    """
    import torch

    threads = torch.get_num_threads()
    share = count // threads & -16
    source, target = torch.randn(count), torch.zeros(count)
    attempt = Attempt((("copy.cpp", STREAMING),))
    with TemporaryDirectory(prefix="cuagent-copy-") as folder, ThreadPoolExecutor(threads) as pool:
        try:
            built = build(attempt, Device.CPU, cache=Path(folder))
            copy = CDLL(str(built.libraries[0].path)).copy if built.ok else None
        except (CompilerMissing, OSError):
            copy = None
        if copy is None:
            return 0.0

        def part(thread: int) -> None:
            ends = (x.data_ptr() + 4 * share * thread for x in (target, source))
            copy(*map(c_void_p, ends), c_int64(share))

        seconds = _fastest(Device.CPU, lambda: list(pool.map(part, range(threads))))
    return 2 * 4 * share * threads / seconds


def _matrix_rate(device: Device, dtype: torch.dtype, side: int) -> float:
    """Return the FLOP per second of a product of two random `side` x `side` matrices.

    The matrices are random because zeros run faster.
    """
    import torch

    a, b = (torch.randn(side, side, device=device.value, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / _fastest(device, lambda: torch.mm(a, b, out=out))


def _fastest(device: Device, call: Callable[[], Any], runs: int = 8) -> float:
    """Return the seconds of the fastest of `runs` calls, after one warm-up call."""
    import torch

    call()
    if device is Device.CPU:
        stamps = [time.perf_counter()]
        for _ in range(runs):
            call()
            stamps.append(time.perf_counter())
        return min(later - earlier for earlier, later in pairwise(stamps))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return min(earlier.elapsed_time(later) for earlier, later in pairwise(events)) / 1e3


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else "CPU"


def _parse_size(text: str) -> int:
    """Return the bytes of a size in the notation of the Linux kernel, e.g. `32768K`."""
    units = {"K": 10, "M": 20, "G": 30}
    return int(text.rstrip("KMG") or 0) << units.get(text[-1:], 0)


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cuagent"
