"""Examine candidate tasks in forked processes, each with its own folder, caches and limits.

The children are forked from one fork server that has imported torch and the compiler. A child that
crashes, hangs or fills the memory is ended, and its candidate is rejected. No file of a candidate
remains on disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuagent.synth.order import AGAIN, REUSABLE, Order
from cuagent.synth.process import INTERRUPTED, Process
from cuagent.worker import ForkServer

TIME_LIMIT_S = 300.0
"""Limit of the wall time in seconds for examining one candidate, without the time spent waiting for
a shared GPU. It is long, so that a busy machine does not change the set."""
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.cpp")
"""Modules of torch.compile that the fork server imports, for children on a CPU only. Their import
looks for a GPU, and CUDA cannot be used in a process that is forked after that."""
IMPORTED = (
    "torch.utils.flop_counter",
    "cuagent.synth.child",
    "cuagent.bench.examine",
    "cuagent.bench.families",
    "cuagent.bench.traced_operators",
    "cuagent.verify.fitness.examine",
)
"""Modules that each child needs, which the fork server imports in advance."""
WARM = "cuagent.synth.warm"
HEADERS = "precompiled_headers"
"""Folder in inductor's cache that all children share; the rest of the cache belongs to one
candidate."""
TRITON = "triton"
DRIVERS = "triton_drivers"
"""Name of the folder with the parts of Triton's cache that all children share."""
TRITON_DRIVER = "cuda_utils"
"""Prefix of the file name of the library through which Triton calls the CUDA driver."""


class Workers:
    """Pool of processes that examine candidate tasks. Several threads may call `examine` at the
    same time."""

    def __init__(
        self,
        device: str,
        compile: bool,
        gpus: Sequence[str | None] = (None,),
        reuse: int = 1,
    ) -> None:
        """Start the fork server. `compile`: True if candidates also run under torch.compile.
        `gpus`: value of CUDA_VISIBLE_DEVICES for each GPU; None means all visible GPUs. `reuse`:
        largest number of candidates that one process examines."""
        self.device = device
        self.reuse = reuse
        self.gpus = list(gpus)
        on_gpu = device == "cuda"
        warm = (WARM,) if compile and not on_gpu else ()
        modules = IMPORTED if on_gpu else (*COMPILER, *IMPORTED, *warm)
        self.fork_server = ForkServer(modules, compiler=on_gpu, on_gpu=on_gpu, eager=on_gpu)
        self._headers = self.fork_server.folder / HEADERS
        self._headers.mkdir()
        self._drivers = self.fork_server.folder / DRIVERS
        self._drivers.mkdir()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._running: set[int] = set()
        """Ids of the processes that have not been ended."""
        self._idle: list[list[Process]] = [[] for _ in self.gpus]
        """Processes by GPU that wait for another candidate."""
        self._started = False
        """True once the fork server has forked a child; until then it imports torch."""

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.fork_server.close()

    def examine(self, order: Order, slot: int = 0, limit_s: float = TIME_LIMIT_S) -> dict[str, Any]:
        """Examine a candidate in a child process, on the GPU that `slot` selects.

        Returns the measured facts, or `reason` and `detail` of its rejection. Raises
        ForkServerError.
        """
        if self.device == "cuda":
            place = slot % len(self.gpus)
            order = replace(order, lock=str(self.fork_server.folder / f"gpu{place}.lock"))
        answer = self._run(order, slot, limit_s)
        if answer.pop(AGAIN, False):
            answer = self._run(replace(order, alone=True), slot, limit_s)
            answer.pop(AGAIN, None)
        return answer

    def stop(self) -> None:
        """End all candidates' processes now. Calls of `examine` return soon, with the key
        `INTERRUPTED`."""
        self._stopped.set()
        with self._lock:
            pids = list(self._running) if self._started else [self.fork_server.pid]
        for pid in pids:
            # The fork server still has to collect the exit status, so the number is not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _run(self, order: Order, slot: int, limit_s: float) -> dict[str, Any]:
        """Examine a candidate in a process of the pool, or in a new one, and return its answer."""
        if self._stopped.is_set():
            return {INTERRUPTED: True}
        place = slot % len(self.gpus)
        with self._lock:
            idle = self._idle[place]
            process = idle.pop() if idle else None
        if process is None:
            process = self._start(place)
        try:
            answer = process.ask(order, limit_s, self._stopped)
            self._keep_driver(process.folder / TRITON)
        except BaseException:
            self._end(process)
            raise
        if answer.pop(REUSABLE, False) and process.used < self.reuse:
            with self._lock:
                self._idle[place].append(process)
        else:
            self._end(process)
        return answer

    def _start(self, place: int) -> Process:
        folder = Path(tempfile.mkdtemp(prefix="synth-", dir=self.fork_server.folder))
        try:
            environment = self._environment(folder, place)
            child = self.fork_server.fork("cuagent.synth.child", folder, environment)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self._lock:
            self._started = True
            self._running.add(child.pid)
        return Process(child, folder)

    def _end(self, process: Process) -> None:
        if not self._stopped.is_set():
            # A GPU process takes long to end, and the fork server waits for it.
            process.await_end()
        with self._lock:
            self._running.discard(process.child.pid)
        try:
            self.fork_server.end(process.child)
        finally:
            shutil.rmtree(process.folder, ignore_errors=True)

    def _environment(self, folder: Path, place: int) -> dict[str, str]:
        cache = folder / "inductor"
        cache.mkdir()
        (cache / HEADERS).symlink_to(self._headers)
        (folder / TRITON).mkdir()
        for driver in self._drivers.iterdir():
            (folder / TRITON / driver.name).symlink_to(driver)
        found = {
            "HOME": str(folder),
            "USER": "synth",
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TRITON_CACHE_DIR": str(folder / TRITON),
        }
        gpu = self.gpus[place]
        return found | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})

    def _keep_driver(self, cache: Path) -> None:
        """Copy the library that Triton compiles for its driver to the shared folder, to save a
        second for each empty cache."""
        with self._lock:
            if any(self._drivers.iterdir()):
                return
            for library in cache.glob(f"*/{TRITON_DRIVER}*.so"):
                shutil.copytree(library.parent, self._drivers / library.parent.name)


def default_jobs(device: str, gpus: int) -> int:
    """Return the default number of candidates to examine at the same time: one for each CPU core,
    at most 16 for each GPU."""
    cores = len(os.sched_getaffinity(0))
    return cores if device == "cpu" else max(gpus, min(cores, 16 * gpus))
