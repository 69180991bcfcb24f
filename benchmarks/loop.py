"""What the loop itself costs: a step at most 50 ms, model and tools excluded; memory flat.

    python benchmarks/loop.py [STEPS]      # 1000 by default

A scripted model answers at once, each step with three calls of file tools. The time of a step is
taken apart by the events: what is neither in the model nor in a tool is the loop's (log, hooks,
the commit of the work folder). Not a test: a loaded machine would fail it for no reason of ours.
Exit 1 above the limit.
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

LIMIT_S = 0.05
GROWTH = 64 << 10
"""Bytes of memory that a step may add: its messages, which the conversation holds, and no more."""
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
    """A model that answers at once, and differently each time."""

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
        nothing: Any = None
        task = load_task(str(root / "plus.py"), device="cpu")
        budget = Budget(steps, None, None)
        run = start_run(task, nothing, model="instant", root=root / "runs", budget=budget)
        model = Instant()
        run_agent(run, model, emit=watch)
        log = run.folder.log.stat().st_size
        run.log.close()
    gc.collect()
    whole = [later - earlier for earlier, later in itertools.pairwise(starts)]
    own = [w - t - m for w, t, m in zip(whole, in_tools, model.seconds, strict=False)]
    quantiles = statistics.quantiles(own, n=20)
    tenth = max(1, len(own) // 10)
    growth = (memory[-1] - memory[tenth]) / (len(memory) - tenth)
    print(f"{len(starts)} steps, {sum(whole):.1f} s; log {log / 2**20:.1f} MiB")
    print(f"the loop's own time: median {ms(statistics.median(own))}, p95 {ms(quantiles[-1])}")
    print(f"first tenth {ms(mean(own[:tenth]))}, last tenth {ms(mean(own[-tenth:]))} a step")
    print(f"tools: median {ms(statistics.median(in_tools))} a step")
    print(f"memory: {memory[tenth] >> 20} MiB after {tenth} steps, {memory[-1] >> 20} at the end, ")
    print(f"        {growth / 1024:.1f} KiB a step; most {peak() >> 20} MiB")
    return int(quantiles[-1] > LIMIT_S or growth > GROWTH)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def mean(values: list[float]) -> float:
    return statistics.fmean(values)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
