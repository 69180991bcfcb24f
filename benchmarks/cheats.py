"""Time each cheat of timing many times, and count how often it shows a gain.

    python benchmarks/cheats.py [--only REGEX] [--repeats N] [--effort quick|record] [--json OUT]

A cheat is an exploit of the corpus that manipulates the timing. One timing of a cheat says little,
because a clock shows the noise of the machine too. So each cheat is judged `--repeats` times on
fresh seeds. A timing is believed if the cheat is accepted and the lower limit of its speedup over
eager exceeds `GAIN`, as in the tests' corpus. Only a timing with record effort is a claim; quick
effort is feedback. Exit 1 if any timing was believed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "corpus"))

import torch  # noqa: E402, F401  (imported before threads are limited, as in a run of all corpora)
from corpus import ACCEPTED, Candidate, exploits  # noqa: E402
from judging import GAIN, CorpusJudges, is_safe, open_judges  # noqa: E402

from cuagent.arms import EAGER  # noqa: E402
from cuagent.timing import Effort  # noqa: E402


@dataclass
class Record:
    """Results of all timings of one exploit."""

    name: str
    words: dict[str, int] = field(default_factory=dict)
    """Number of verdicts for each reason, by the reason's name."""
    ratios: list[tuple[float, float, float]] = field(default_factory=list)
    """(Speedup over eager, lower limit, upper limit) for each accepted timing."""
    busy: list[float] = field(default_factory=list)
    """Share of the processors that other processes used, for each timing."""

    @property
    def believed(self) -> int:
        return sum(low > GAIN for _, low, _ in self.ratios)


def main() -> int:
    options = _options()
    pattern = re.compile(options.only)
    chosen = [
        c
        for c in exploits()
        if c.timed
        and c.device == "cpu"
        and ACCEPTED not in c.expect
        and pattern.search(c.name)
        and is_safe(c)
    ]
    records = []
    with open_judges() as opened:
        for candidate in chosen:
            records.append(_repeated(opened, candidate, Effort(options.effort), options.repeats))
            print(_line(records[-1]), flush=True)
    believed = sum(record.believed for record in records)
    timings = sum(sum(record.words.values()) for record in records)
    print(f"{len(records)} cheats, {timings} timings ({options.effort}), {believed} believed")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(r) for r in records], indent=1) + "\n")
    return int(bool(believed))


def _repeated(opened: CorpusJudges, candidate: Candidate, effort: Effort, repeats: int) -> Record:
    record = Record(candidate.name)
    for _ in range(repeats):
        judgement = opened.for_candidate(candidate).judge(candidate.attempt, effort)
        word = judgement.verdict.reason.name.lower().replace("_", " ")
        record.words[word] = record.words.get(word, 0) + 1
        if judgement.timing is not None:
            record.busy.append(judgement.timing.busy)
            if judgement.verdict.accepted and (ratio := judgement.timing.ratios.get(EAGER)):
                record.ratios.append((ratio.value, ratio.low, ratio.high))
    return record


def _line(record: Record) -> str:
    words = ", ".join(f"{word} {count}" for word, count in record.words.items())
    best = max(record.ratios, key=lambda ratio: ratio[1], default=None)
    text = "" if best is None else f"; at best {best[0]:.2f} [{best[1]:.2f}, {best[2]:.2f}]"
    load = os.getloadavg()[0]
    return f"{record.name:28} believed {record.believed}: {words}{text} (load {load:.1f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="pattern that the name must match")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--effort", choices=(Effort.QUICK, Effort.RECORD), default=Effort.QUICK)
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
