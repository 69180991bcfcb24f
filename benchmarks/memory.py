"""Measure the memory that a verdict and a timing of a softmax take.

    python benchmarks/memory.py [--rows N] [--columns N] [--device cpu|cuda] [--no-timing]

The program prints the peak of each phase, sampled every 5 ms, in bytes and as a multiple of the
size of one input set with its output. On the CPU it shows the private memory of the referee, the
oracle and the largest other process, and the shared arenas. On a GPU it shows the sum of all
processes, because memory there cannot be assigned to a process. The candidate is the reference.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.task.memory import free, size, total
from cuagent.timing import Effort
from cuagent.verify import Referee
from cuagent.worker import ForkServer

SAMPLE_S = 0.005
"""Seconds between two measurements of the used GPU memory."""
TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.rand({rows}, {columns})]
"""
CANDIDATE = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
"""


class Peaks:
    """Peak memory in bytes by (phase, kind of process). A thread samples the memory inside the
    context."""

    def __init__(self, device: Device, fork_server: ForkServer) -> None:
        self.device = device
        self.fork_server = fork_server
        self.oracle = 0
        """Pid of the oracle: the first process that the fork server forks."""
        self.phase = ""
        self.peak_bytes: Counter[tuple[str, str]] = Counter()
        self._before = free(device.value)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_done, daemon=True)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Record the samples inside this context under `phase`; print the phase's seconds at its
        end."""
        self.phase = phase
        start = time.perf_counter()
        yield
        print(f"{phase:<10} {time.perf_counter() - start:6.1f} s", flush=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample_until_done(self) -> None:
        while not self._done.wait(SAMPLE_S):
            for name, count in self._sample().items():
                self.peak_bytes[self.phase, name] = max(self.peak_bytes[self.phase, name], count)

    def _sample(self) -> dict[str, int]:
        if self.device is Device.CUDA:
            return {"all": self._before - free(self.device.value)}
        own = _resident("self")
        found = {"referee": own.get("RssAnon", 0), "arenas": own.get("RssShmem", 0)}
        for pid in sorted(self.fork_server.living):
            self.oracle = self.oracle or pid
            name = "oracle" if pid == self.oracle else "others"
            found[name] = max(found.get(name, 0), _resident(str(pid)).get("RssAnon", 0))
        return found


def _resident(process: str) -> dict[str, int]:
    """Return the resident bytes of a process by kind (`RssAnon`, ...); empty if the process is
    gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {s[0][:-1]: int(s[1]) << 10 for s in map(str.split, lines) if s[0].startswith("Rss")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1 << 17)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-timing", action="store_true")
    options = parser.parse_args()
    device = Device(options.device)
    bytes_of_one = 2 * 4 * options.rows * options.columns
    print(f"one input set and output: {size(bytes_of_one)} of {size(total(device.value))}")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        fork_server = stack.enter_context(closing(ForkServer()))
        peaks = stack.enter_context(Peaks(device, fork_server))
        path = Path(folder) / "softmax.py"
        path.write_text(TASK.format(rows=options.rows, columns=options.columns))
        task = load_task(str(path), device=device)
        attempt = Attempt((("model_new.py", CANDIDATE),))
        with peaks.during("opening"):
            referee = stack.enter_context(Referee(task, fork_server=fork_server))
        built = build(attempt, device)
        with peaks.during("verdict"):
            verdict = referee.verify(attempt, built)
        print(f"           {verdict.reason}: {verdict.detail}")
        if verdict.accepted and not options.no_timing:
            with peaks.during("timing"), Timer(referee) as timer:
                timing = timer.time(attempt, built, Effort.GLANCE)
            print(f"           {timing.arms[0].failed or timing.ratios}")
    for (phase, name), peak in peaks.peak_bytes.items():
        print(f"{phase:<10} {name:<8} {size(peak):>10}  {peak / bytes_of_one:5.2f} times")


if __name__ == "__main__":
    main()
