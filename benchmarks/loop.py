"""Measure the overhead of the agent loop: at most 50 ms per step, and constant memory.

    python benchmarks/loop.py [STEPS]      # 1000 by default

A scripted model replies immediately; each step has three calls of file tools. The loop's overhead
is the time of a step outside the model and the tools: log, hooks, the commit of the work folder. It
is separate from the tests because it can fail on a busy machine. Exit code 1 above a limit.
"""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuagent.agent import Budget, run_agent, start_run
from cuagent.events import Event, StepStarted, ToolFinished
from cuagent.message import Message, Reply
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.scripted import reply_of
from cuagent.task import load_task

MAX_STEP_S = 0.05
"""Largest accepted 95th percentile, over the steps, of the loop's overhead in seconds."""
MAX_GROWTH = 64 << 10
"""Largest accepted growth of memory in bytes per step. It leaves room for the step's messages in
the conversation."""
SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(4)]


def get_init_inputs():
    return []
"""


class Instant:
    """Scripted model that replies immediately, with a different text each time."""

    name = "instant"

    def __init__(self) -> None:
        self.count = itertools.count()
        self.seconds: list[float] = []

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        start, n = time.perf_counter(), next(self.count)
        text = f"x = {n}\n" * 100
        calls: list[dict[str, Any]] = [
            {"name": "write", "arguments": {"path": f"a{n % 9}.py", "text": text}},
            {"name": "read", "arguments": {"path": f"a{n % 9}.py"}},
            {"name": "grep", "arguments": {"pattern": f"= {n}$"}},
        ]
        reply = reply_of({"text": f"Step {n}.", "calls": calls}, n)
        self.seconds.append(time.perf_counter() - start)
        return reply


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    starts: list[float] = []
    in_tools: list[float] = []
    memory: list[int] = []

    def watch(event: Event) -> None:
        match event:
            case StepStarted():
                starts.append(time.perf_counter())
                in_tools.append(0.0)
                memory.append(resident())
            case ToolFinished(seconds=seconds):
                in_tools[-1] += seconds

    with tempfile.TemporaryDirectory(prefix="cuagent-loop-") as name:
        root = Path(name)
        (root / "plus.py").write_text(SOURCE)
        no_judge: Any = None
        task = load_task(str(root / "plus.py"), device="cpu")
        budget = Budget(steps, None, None)
        run = start_run(task, no_judge, model="instant", root=root / "runs", budget=budget)
        model = Instant()
        run_agent(run, model, emit=watch)
        log = run.folder.log.stat().st_size
        run.log.close()
    gc.collect()
    total = [later - earlier for earlier, later in itertools.pairwise(starts)]
    overhead = [w - t - m for w, t, m in zip(total, in_tools, model.seconds, strict=False)]
    p95 = statistics.quantiles(overhead, n=20)[-1]
    tenth = max(1, len(overhead) // 10)
    first, last = overhead[:tenth], overhead[-tenth:]
    growth = (memory[-1] - memory[tenth]) / (len(memory) - tenth)
    print(f"{len(starts)} steps, {sum(total):.1f} s; log {log / 2**20:.1f} MiB")
    print(f"overhead of the loop: median {ms(statistics.median(overhead))}, p95 {ms(p95)}")
    print(f"first tenth {ms(mean(first))}, last tenth {ms(mean(last))} per step")
    print(f"tools: median {ms(statistics.median(in_tools))} per step")
    print(f"memory: {memory[tenth] >> 20} MiB after {tenth} steps, {memory[-1] >> 20} at the end, ")
    print(f"        {growth / 1024:.1f} KiB per step; peak {peak() >> 20} MiB")
    return int(p95 > MAX_STEP_S or growth > MAX_GROWTH)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """Return the largest resident memory that this process has reached, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def mean(values: list[float]) -> float:
    return statistics.fmean(values)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
