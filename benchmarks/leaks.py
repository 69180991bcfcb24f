"""Check for leaks: judge many right and wrong attempts in a row, and count resources.

    python benchmarks/leaks.py --runs 200 --device cpu

The program counts processes, descriptors, temporary files, files in /dev/shm and memory, after the
first ten verdicts, after every fifty and after the last. Exit code 1 if a count has grown from the
first to the last.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verify"))

from bodies import REFERENCE, candidate

from cuagent.build import build
from cuagent.task import load_task
from cuagent.verify import Referee

BODIES = (
    "return self.honest(x)",
    "return self.honest(x) * 1.01",
    "raise ValueError",
    "import os; os._exit(1)",
    "import os; os.fork() or os.setsid() or __import__('time').sleep(99); return self.honest(x)",
)
EVERY = 50
"""Number of verdicts between two reports."""
SLACK = {"GPU MiB": 64, "resident MiB": 64}
"""Growth of a count that allocators may cause without a leak."""


def counts(root: Path, device: str) -> dict[str, int]:
    """Return the current use of each resource. `root`: folder of temporary files."""
    found = {
        "processes": len(_descendants(os.getpid())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "temporary files": sum(1 for _ in root.rglob("*")),
        "shared memory": len(list(Path("/dev/shm").iterdir())),
        "resident MiB": int(Path("/proc/self/statm").read_text().split()[1]) * 4 >> 10,
    }
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found["GPU MiB"] = (total - free) >> 20
    return found


def _descendants(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [x for child in map(int, listed) for x in (child, *_descendants(child))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        path = Path(folder, "task.py")
        path.write_text(REFERENCE)
        task = load_task(str(path), device=options.device)
        with Referee(task, call_s=5.0) as referee:
            before: dict[str, int] = {}
            reasons: Counter[str] = Counter()
            begun = time.perf_counter()
            for run in range(options.runs):
                attempt = candidate(BODIES[run % len(BODIES)])
                reasons[referee.verify(attempt, build(attempt, task.device)).reason] += 1
                if run == 9:
                    before = counts(Path(folder), options.device)
                if run % EVERY == EVERY - 1:
                    now = counts(Path(folder), options.device)
                    print(
                        f"{run + 1} verdicts, {time.perf_counter() - begun:.0f} s: {now}",
                        flush=True,
                    )
            after = counts(Path(folder), options.device)
        grown = [n for n in after if after[n] > before[n] + SLACK.get(n, 0)]
        print(", ".join(f"{reason}: {count}" for reason, count in reasons.items()))
        for name, count in after.items():
            print(f"{name:16} {before[name]:6} after 10, {count:6} after {options.runs}")
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
