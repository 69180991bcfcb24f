"""Examine candidate tasks in forked processes, each with its own folder, caches and limits.

The children are forked from one fork server that has imported torch and the compiler. A child that
crashes, hangs or fills the memory is ended, and its candidate is rejected. No file of a candidate
remains on disk.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuagent.synth.order import AGAIN, Order
from cuagent.synth.progress import Seen, read_progress
from cuagent.synth.reasons import Reason
from cuagent.worker import ForkServer
from cuagent.worker.channel import receive_message
from cuagent.worker.fork_server import Child

TIME_LIMIT_S = 300.0
"""Limit of the wall time in seconds for examining one candidate, without the time spent waiting for
a shared GPU. It is long, so that a busy machine does not change the set."""
INTERVAL_LIMIT_S = 20.0
"""Limit in seconds of an interval in which a candidate keeps a shared GPU from the timings of
others. It usually takes less than one second; the first use of a library takes several."""
HELD_LIMIT_S = 60.0
"""Limit in seconds of all such intervals of one candidate together."""
POLL_S = 0.2
"""Seconds between two looks at a candidate's state."""
EXIT_S = 10.0
"""Longest wait in seconds for a process to exit after it has sent its answer."""
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.cpp")
"""Modules of torch.compile that the fork server imports, for children on a CPU only. Their import
looks for a GPU, and CUDA cannot be used in a process that is forked after that."""
IMPORTED = (
    "torch.utils.flop_counter",
    "cuagent.synth.examine",
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
INTERRUPTED = "interrupted"
"""Key of the answer for a candidate that `Workers.stop` ended."""


class Workers:
    """Pool of processes that examine candidate tasks. Several threads may call `examine` at the
    same time."""

    def __init__(self, device: str, compile: bool, gpus: Sequence[str | None] = (None,)) -> None:
        """Start the fork server. `compile`: True if candidates also run under torch.compile.
        `gpus`: value of CUDA_VISIBLE_DEVICES for each GPU; None means all visible GPUs."""
        self.device = device
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
        """Process ids of the candidates that are being examined."""
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
        answer = self.run("cuagent.synth.examine", order.write, slot, limit_s)
        if answer.pop(AGAIN, False):
            order = replace(order, alone=True)
            answer = self.run("cuagent.synth.examine", order.write, slot, limit_s)
            answer.pop(AGAIN, None)
        return answer

    def stop(self) -> None:
        """End all candidates' processes now. Calls of `run` return soon, with the key
        `INTERRUPTED`."""
        self._stopped.set()
        with self._lock:
            pids = list(self._running) if self._started else [self.fork_server.pid]
        for pid in pids:
            # The fork server still has to collect the exit status, so the number is not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def run(
        self, program: str, write: Callable[[Path], None], slot: int, limit_s: float
    ) -> dict[str, Any]:
        """Run `program.serve` in a child process, in a folder that `write` fills. Return the
        child's answer.

        If the child dies, exceeds `limit_s` seconds or keeps a shared GPU too long, the answer has
        `reason` and `detail`.
        """
        folder = Path(tempfile.mkdtemp(prefix="synth-", dir=self.fork_server.folder))
        try:
            write(folder)
            child = self.fork_server.fork(program, folder, self._environment(folder, slot))
            try:
                with self._lock:
                    self._started = True
                    self._running.add(child.pid)
                answer = self._answer(child, folder, limit_s)
                if child.pidfd is not None and not self._stopped.is_set():
                    # A GPU process takes long to end, and the fork server waits for it.
                    select.select([child.pidfd], [], [], EXIT_S)
            finally:
                with self._lock:
                    self._running.discard(child.pid)
                self.fork_server.end(child)
            self._keep_driver(folder / TRITON)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return answer

    def _answer(self, child: Child, folder: Path, limit_s: float) -> dict[str, Any]:
        """Wait for the child's answer, or for a reason to end it, and return the answer."""
        begun = time.monotonic()
        seen: Seen | None = None
        while True:
            ended, _, _ = select.select([child.channel], [], [], POLL_S)
            if (published := read_progress(folder)) is not None:
                seen = published.at(time.monotonic())
            if self._stopped.is_set():
                found: dict[str, Any] = {INTERRUPTED: True}
                break
            if ended:
                if (received := receive_message(child.channel)) is not None:
                    return received[0]
                found = {"reason": Reason.CRASHED.value, "detail": "its process died"}
                break
            waited_s = 0.0 if seen is None else seen.waited_s
            if time.monotonic() - begun - waited_s > limit_s:
                found = {"reason": Reason.TIMED_OUT.value, "detail": f"over {limit_s:.0f} s"}
                break
            if seen is not None and (text := _kept_too_long(seen)):
                found = {"reason": Reason.SLOW.value, "detail": text}
                break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child.pid, signal.SIGKILL)
        return found | ({} if seen is None else {"gpu": seen.to_json(), "stage": seen.stage})

    def _environment(self, folder: Path, slot: int) -> dict[str, str]:
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
        gpu = self.gpus[slot % len(self.gpus)]
        return found | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})

    def _keep_driver(self, cache: Path) -> None:
        """Copy the library that Triton compiles for its driver to the shared folder, to save a
        second for each empty cache."""
        with self._lock:
            if any(self._drivers.iterdir()):
                return
            for library in cache.glob(f"*/{TRITON_DRIVER}*.so"):
                shutil.copytree(library.parent, self._drivers / library.parent.name)


def _kept_too_long(seen: Seen) -> str:
    """Return how a candidate has exceeded a limit on its use of the GPU; "" if it has not."""
    if seen.longest_s > INTERVAL_LIMIT_S:
        return f"{seen.longest_stage}: over {INTERVAL_LIMIT_S:.0f} s without a pause"
    if seen.held_s > HELD_LIMIT_S:
        return f"over {HELD_LIMIT_S:.0f} s with the GPU"
    return ""


def default_jobs(device: str, gpus: int) -> int:
    """Return the default number of candidates to examine at the same time: one for each CPU core,
    at most 16 for each GPU."""
    cores = len(os.sched_getaffinity(0))
    return cores if device == "cpu" else max(gpus, min(cores, 16 * gpus))
