"""How long an agent waits: from a changed source to verdict, quick timing and profile.

    python benchmarks/turnaround.py --device cuda [--out docs/measurements/turnaround.json]

For each example the judge is opened once, as a run does, and then judges candidates whose text
changed: the reference with one more comment each time. What is timed is the build, the verdict, a
quick timing against eager and torch.compile, and a profile. Not covered: other tools' times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from cuagent.attempt import Attempt
from cuagent.judge import Judge
from cuagent.measure.timing import Effort
from cuagent.task import load_task


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for path in sorted(Path("examples").glob("*.py")):
        begun = time.perf_counter()
        with Judge(load_task(path, device=asked.device)) as judge:
            opened = time.perf_counter() - begun
            for run in range(asked.runs):
                source = path.read_text().replace("class Model(", "class ModelNew(")
                attempt = Attempt((("model_new.py", f"# {run}\n{source}"),))
                marks = [time.perf_counter()]
                judge.build(attempt)
                marks.append(time.perf_counter())
                judgement = judge.judge(attempt, None)
                marks.append(time.perf_counter())
                timed = judge.judge(attempt, Effort.QUICK).timing
                timing_s = timed.seconds if timed is not None else float("nan")
                marks.append(time.perf_counter())
                judge.profile(attempt)
                profile_s = time.perf_counter() - marks[-1]
                rows.append(
                    {
                        "example": path.stem,
                        "run": run,
                        "open": opened,
                        "build": marks[1] - marks[0],
                        "verdict": marks[2] - marks[1],
                        "accepted": judgement.verdict.accepted,
                        "timing": timing_s,
                        "profile": profile_s,
                        "all": marks[2] - marks[0] + timing_s + profile_s,
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    later = [row["all"] for row in rows if row["run"] > 0]
    print(f"median after the first run of each: {median(later):.1f} s")
    if asked.out:
        asked.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
