"""Measure how many tasks a minute `cuagent synth` accepts on this machine, and where the time goes.

    python benchmarks/synth_rate.py --device cuda --seconds 200 --out DIR [--jobs N]

Makes tasks until the time is up. Prints the accepted tasks a minute (from the first candidate on,
without the start), the reasons of rejections, the mean seconds of each stage of a candidate, and
the distribution of eager times. The records stay in DIR/shards. pyarrow is not needed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cuagent.bench.scheduler import visible_gpu
from cuagent.synth.compose import Grammar
from cuagent.synth.run import Settings, synthesize
from cuagent.synth.shards import Record
from cuagent.synth.workers import default_jobs

MANY = 100_000


class _TimeUp(Exception):
    """Exception that ends the measurement when the time is over."""


class _Observed:
    """Collector of the records of all candidates that were examined in time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = time.monotonic()
        self.first: float | None = None
        self.shown = 0.0
        self.records: list[Record] = []

    def __call__(self, accepted: int, examined: int, record: Record) -> None:
        now = time.monotonic()
        if record.get("stages"):
            # The first answer comes one candidate's time after its start.
            self.first = self.first or now - sum(record["stages"].values())
        self.records.append(record)
        if now - self.shown > 20:
            self.shown = now
            print(f"{now - self.started:.0f} s: {accepted} accepted of {examined}", flush=True)
        if now - self.started > self.seconds:
            raise _TimeUp

    def report(self, jobs: int) -> str:
        """Return the measured figures as text."""
        end, first = time.monotonic(), self.first or self.started
        accepted = [r for r in self.records if not r.get("reason")]
        ran = [r for r in self.records if r.get("stages")]
        minutes = (end - first) / 60
        stages = Counter[str]()
        for record in ran:
            stages.update(record["stages"])
        means = ", ".join(f"{n} {s / max(1, len(ran)):.2f}" for n, s in stages.items())
        reasons = Counter(r["reason"] for r in self.records if r.get("reason"))
        cpu = sum(r.get("cpu_s", 0.0) for r in ran)
        times = sorted(r["eager_s"] * 1e3 for r in accepted)
        lines = [
            f"{len(accepted)} accepted of {len(self.records)} in {minutes:.2f} minutes "
            f"(after a start of {first - self.started:.1f} s), {jobs} at a time",
            f"{len(accepted) / minutes:.1f} accepted a minute",
            f"seconds of a candidate: {means}",
            f"processor seconds of a candidate: {cpu / max(1, len(ran)):.2f}; processors in use: "
            f"{cpu / (end - first):.1f}",
            f"rejections: {dict(reasons.most_common())}",
            f"eager ms, tenths: {[round(_quantile(times, n / 10), 2) for n in range(11)]}",
        ]
        return "\n".join(lines)


def main() -> None:
    """Measure the rate of `cuagent synth` and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--kernelbench", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    grammar = Grammar(sizes="large" if given.device == "cuda" else "small")
    settings = Settings(
        MANY, given.seed, given.device, grammar=grammar, kernelbench=given.kernelbench
    )
    places: list[Any] = [visible_gpu(0)] if given.device == "cuda" else [None]
    jobs = given.jobs or default_jobs(given.device, 1)
    observed = _Observed(given.seconds)
    try:
        synthesize(settings, given.out, False, jobs, observed, places)
    except _TimeUp:
        print(observed.report(jobs))


def _quantile(values: list[float], share: float) -> float:
    return values[round(share * (len(values) - 1))] if values else 0.0


if __name__ == "__main__":
    main()
