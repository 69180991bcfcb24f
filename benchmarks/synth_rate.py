"""Measure how many tasks a minute `cuagent synth` accepts on this machine, and where the time goes.

    python benchmarks/synth_rate.py --device cuda --seconds 200 --out DIR [--jobs N] [--reuse N]

Makes tasks until the time is up. Prints

- the accepted tasks a minute, counted from the first candidate on;
- the reasons of rejections, and the distribution of eager times;
- the mean seconds of each stage of a candidate;
- the candidates, finished or not, that kept the GPU longest from others.

The records stay in DIR/shards. pyarrow is not needed.
"""

from __future__ import annotations

import argparse
import signal
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


SHOWN = 10
"""Number of candidates that are listed."""


class _TimeUp(Exception):
    """Exception that ends the measurement when the time is over."""


class _Observed:
    """Collector of the records of all candidates that were examined in time."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first: float | None = None
        self.shown = 0.0
        self.ended = 0.0
        self.records: list[Record] = []
        self.unfinished: list[Record] = []

    def __call__(self, accepted: int, examined: int, record: Record) -> None:
        now = time.monotonic()
        if record.get("stages"):
            # The first answer comes one candidate's time after its start.
            self.first = self.first or now - sum(record["stages"].values())
        self.records.append(record)
        if now - self.shown > 20:
            self.shown = now
            print(f"{now - self.started:.0f} s: {accepted} accepted of {examined}", flush=True)

    def end(self, *_: object) -> None:
        """Handle the signal at the end of the time."""
        self.ended = time.monotonic()
        raise _TimeUp

    def report(self, jobs: int) -> str:
        """Return the measured figures as text."""
        end, first = self.ended, self.first or self.started
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
            *self._gpu(end - first),
        ]
        return "\n".join(lines)

    def _gpu(self, seconds: float) -> list[str]:
        """Return lines on the use of the GPU: means of all candidates, and the longest users."""
        used = [record for record in (*self.records, *self.unfinished) if record.get("gpu")]
        if not used:
            return []
        sums = Counter[str]()
        for record in used:
            sums.update({n: s for n, s in record["gpu"].items() if n != "longest_stage"})
        means = ", ".join(f"{name} {value / len(used):.2f}" for name, value in sums.items())
        busy = (sums["sharing_s"] + sums["timing_s"]) / seconds
        lines = [f"GPU, seconds of a candidate: {means}", f"processes with the GPU: {busy:.2f}"]
        for name, text in (
            ("longest_s", "longest intervals in which no other candidate could be timed"),
            ("memory_s", "longest with reserved memory"),
            ("timing_s", "longest timings"),
        ):
            lines.append(f"{text}:")
            for record in sorted(used, key=lambda r: -r["gpu"][name])[:SHOWN]:
                gpu = record["gpu"]
                state = record.get("reason") or record.get("stage") or "accepted"
                lines.append(
                    f"  {gpu[name]:7.2f} s  candidate {record['index']} ({state}), "
                    f"{' '.join(record['ops'])} {record['dtype']}, in {gpu['longest_stage']}; "
                    f"stages {record.get('stages', {})}"
                )
        return lines


def main() -> None:
    """Measure the rate of `cuagent synth` and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--reuse", type=int, default=0, help="candidates of one process")
    parser.add_argument("--kernelbench", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    grammar = Grammar(sizes="large" if given.device == "cuda" else "small")
    settings = Settings(
        MANY, given.seed, given.device, grammar=grammar, kernelbench=given.kernelbench
    )
    places: list[Any] = [visible_gpu(0)] if given.device == "cuda" else [None]
    jobs = given.jobs or default_jobs(given.device, 1)
    observed = _Observed()
    signal.signal(signal.SIGALRM, observed.end)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    try:
        synthesize(
            settings,
            given.out,
            False,
            jobs,
            observed,
            places,
            None,
            observed.unfinished.append,
            given.reuse,
        )
    except (_TimeUp, KeyboardInterrupt):
        now = time.monotonic()
        observed.ended = observed.ended or now
        print(observed.report(jobs))
        stopped_s = now - observed.ended
        print(f"{len(observed.unfinished)} candidates unfinished, ended in {stopped_s:.1f} s")


def _quantile(values: list[float], share: float) -> float:
    return values[round(share * (len(values) - 1))] if values else 0.0


if __name__ == "__main__":
    main()
