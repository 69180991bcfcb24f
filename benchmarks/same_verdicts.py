"""Judge recorded attempts under two checkouts and compare acceptance, reason and seconds.

    git worktree add /tmp/earlier 34d5e1c
    python -m venv /tmp/venv && /tmp/venv/bin/pip install /tmp/earlier
    python benchmarks/same_verdicts.py /tmp/earlier /tmp/venv/bin/python [--number 20] [--seed 7]

The attempts are drawn from the corpus: exploits, honest candidates and seeded bugs of tasks that
are equal in both checkouts. Not drawn: cheats of timing, candidates that need a GPU or TF32, and
those that may harm a machine. Each attempt runs `cuagent verify` once in each checkout, in
alternating order; the earlier one needs its own interpreter, because its fork server imports the
installed package. Exit 1 if an attempt has another result.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "corpus"), str(ROOT)]

from corpus import Candidate, bugs, exploits, honest, task_path  # noqa: E402


def drawn(earlier: Path, number: int, seed: int) -> list[Candidate]:
    """Return a random sample of the corpus: 40 % exploits, 30 % honest candidates, 30 % seeded
    bugs."""

    def is_fit(c: Candidate) -> bool:
        task = task_path(c.task)
        there = earlier / task.relative_to(ROOT)
        unequal = not there.is_file() or there.read_text() != task.read_text()
        return not (
            unequal
            or c.timed
            or c.harm
            or c.apart
            or c.open
            or c.device != "cpu"
            or c.precision != "match"
        )

    draw = random.Random(seed)
    found: list[Candidate] = []
    for kind, share in ((exploits(), 0.4), (honest(), 0.3), (bugs(), 0.3)):
        found += draw.sample([c for c in kind if is_fit(c)], round(share * number))
    return found


@dataclass(frozen=True)
class Side:
    """One checkout: its folder (`tree`), and the interpreter and precision with which it is run."""

    tree: Path
    python: str
    precision: str
    """Value of the option `--precision` that selects full float32; in the first checkouts this was
    `match`."""


def judged(side: Side, candidate: Candidate, folder: Path) -> tuple[str, float]:
    """Run `cuagent verify` of one checkout on an attempt; return the verdict's reason and the
    seconds that it took."""
    task = side.tree / task_path(candidate.task).relative_to(ROOT)
    command = [side.python, "-m", "cuagent", "verify", str(task), str(folder), "--json"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--device", "cpu", "--precision", side.precision],
        env=os.environ | {"OMP_NUM_THREADS": str(candidate.threads)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    try:
        return str(json.loads(done.stdout)["verdict"]["reason"]), seconds
    except (ValueError, KeyError):
        return f"exit {done.returncode}: {done.stderr.strip()[-200:]}", seconds


def main() -> int:
    """Judge each attempt under both checkouts; return 1 if a reason differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("earlier", type=Path)
    parser.add_argument("python", help="interpreter in which the earlier checkout is installed")
    parser.add_argument("--earlier-precision", default="match", metavar="NAME")
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    earlier = Side(given.earlier.resolve(), given.python, given.earlier_precision)
    current = Side(ROOT, sys.executable, "fp32")
    different, ratios = 0, []
    for n, candidate in enumerate(drawn(earlier.tree, given.number, given.seed)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in candidate.attempt.files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(text)
            sides = (current, earlier) if n % 2 else (earlier, current)
            results = {side: judged(side, candidate, folder) for side in sides}
        (before, before_s), (now, now_s) = results[earlier], results[current]
        different += before != now
        ratios.append(now_s / before_s)
        sign = "  " if before == now else "! "
        shown = f"{candidate.name:36}{before} | {now}  {before_s:.1f} {now_s:.1f} s"
        print(f"{sign}{candidate.kind:8}{shown}")
        sys.stdout.flush()
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(f"{different} of {len(ratios)} different; now over earlier: {mean:.2f} (geometric mean)")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
