"""Inject random faults into many verdicts: each must end with the right reason, and none may hang.

    python benchmarks/faults.py --runs 50 --seed 1

The program prints a line per run. It exits with 1 if a verdict has a wrong reason, or if the honest
attempt that follows is not accepted.
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
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.py")
        path.write_text(REFERENCE)
        task = load_task(str(path), device="cpu")
        with Referee(task, call_s=3.0) as referee:

            def verify(body: str) -> Verdict:
                attempt = candidate(body)
                return referee.verify(attempt, build(attempt, task.device))

            wrong = 0
            for run in range(options.runs):
                name = rng.choice(list(FAULTS))
                start = time.perf_counter()
                verdict = suffer(referee, verify, FAULTS[name], rng)
                seconds = time.perf_counter() - start
                after = verify(HONEST)
                right = verdict.reason in FAULTS[name].reasons and after.accepted
                wrong += not right
                note = (
                    "" if right else f"  <-- wrong; honest attempt: {after.reason} {after.detail}"
                )
                print(f"{run + 1:3} {name:22} {verdict.reason:28} {seconds:5.1f} s{note}")
    print(f"{options.runs} runs, {wrong} with a wrong reason")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
