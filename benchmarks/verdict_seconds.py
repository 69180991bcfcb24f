"""Print how long a task's verdict takes, by part, for a candidate that is a copy of the module.

    python benchmarks/verdict_seconds.py [--device cuda] [--repeats 2] [--out FILE] TASK.py ...

For each task: seconds to open it, to examine it, and of each verdict (oracle, worker, candidate,
compare, total). Nothing is timed and no compiler runs, so the device may be shared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task, load_task
from cuagent.verify import Referee
from cuagent.verify.admission import admit
from cuagent.worker import ForkServer

MODEL = re.compile(r"^class Model\b", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    with ForkServer() as fork_server:
        for path in given.tasks:
            task = load_task(path, device=given.device)
            rows.append({"task": path.name} | _seconds(task, fork_server, given.repeats))
            print(json.dumps(rows[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"command": sys.argv, "rows": rows}, indent=1) + "\n")


def _seconds(task: Task, fork_server: ForkServer, repeats: int) -> dict[str, Any]:
    """Return the seconds of each step for one task, and the verdicts."""
    text, renamed = MODEL.subn("class ModelNew", task.source)
    if renamed != 1:
        return {"error": "the file has no class Model"}
    source = text.replace("super(Model,", "super(ModelNew,")
    attempt = Attempt((("model_new.py", source),))
    stamps = [time.perf_counter()]
    with Referee(task, fork_server=fork_server) as referee:
        stamps.append(time.perf_counter())
        reasons = admit(referee).reasons
        stamps.append(time.perf_counter())
        built = build(attempt, task.device)
        verdicts = [referee.verify(attempt, built) for _ in range(repeats)]
        return {
            "opening_s": round(stamps[1] - stamps[0], 2),
            "examining_s": round(stamps[2] - stamps[1], 2),
            "verdicts_s": [
                {k: round(v, 2) for k, v in verdict.seconds.items()} for verdict in verdicts
            ],
            "draws": [len(verdict.draws) for verdict in verdicts],
            "accepted": [verdict.accepted for verdict in verdicts],
            "details": [verdict.detail for verdict in verdicts],
            "not_certifiable": list(reasons),
            "large": referee.large,
            "columns_bytes": referee.facts.columns,
        }


if __name__ == "__main__":
    main()
