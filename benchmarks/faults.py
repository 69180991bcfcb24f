"""Faults injected at random into many verdicts: each must end in its own class, and none hang.

    python benchmarks/faults.py --runs 50 --seed 1

Prints a line per run and exits with 1 if one ended in a wrong class or the honest attempt after it
was not accepted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verify"))

from bodies import REFERENCE, candidate
from inject import FAULTS, HONEST, suffer

from cuagent.build import build
from cuagent.task import load_task
from cuagent.verify import Referee, Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.py")
        path.write_text(REFERENCE)
        task = load_task(str(path), device="cpu")
        with Referee(task, call_s=3.0) as referee:

            def judged(body: str) -> Verdict:
                attempt = candidate(body)
                return referee.verify(attempt, build(attempt, task.device))

            wrong = 0
            for run in range(options.runs):
                name = dice.choice(list(FAULTS))
                begun = time.perf_counter()
                verdict = suffer(referee, judged, FAULTS[name], dice)
                seconds = time.perf_counter() - begun
                after = judged(HONEST)
                right = verdict.reason in FAULTS[name].reasons and after.accepted
                wrong += not right
                mark = "" if right else f"  <-- wrong; after it: {after.reason} {after.detail}"
                print(f"{run + 1:3} {name:22} {verdict.reason:28} {seconds:5.1f} s{mark}")
    print(f"{options.runs} runs, {wrong} in a wrong class")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
