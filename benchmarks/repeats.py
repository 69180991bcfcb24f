"""Judge each candidate of a corpus many times, on fresh seeds, and count wrong verdicts.

    python benchmarks/repeats.py [--kind honest|bug|exploit] [--only REGEX] [--repeats N]
                                 [--json OUT]

One verdict says little about a rule that draws random inputs. This program prints how often each
candidate gets a wrong verdict, on which kind of draw, and how near it comes to the bound: for an
honest candidate the largest ratio of error to bound, for a bug the smallest ratio that rejected it.
Not covered: candidates that can end a judge, and those that need timing; `corpus.py` runs them.
Exit 1 if any verdict was wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "corpus"))

from corpus import ACCEPTED, Candidate, everything  # noqa: E402
from judging import CorpusJudges, is_safe, open_judges  # noqa: E402

from cuagent.verify import Reason, Verdict  # noqa: E402

NEAR = 0.5
"""Share of the bound above which the output marks an honest candidate's error by `near`."""


@dataclass
class Record:
    """Results of all verdicts on one candidate."""

    name: str
    kind: str
    task: str
    verdicts: int = 0
    wrong: list[str] = field(default_factory=list)
    """Details of each verdict that differs from the one that the corpus expects."""
    reasons: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Largest ratio of error to bound, by kind of draw."""
    refused: Counter[str] = field(default_factory=Counter)
    """Number of verdicts in which a draw failed, by kind of draw."""
    least: float = float("inf")
    """Smallest value, over all verdicts, of the largest ratio of error to bound in a verdict."""

    def add(self, candidate: Candidate, verdict: Verdict) -> None:
        word = verdict.reason.name.lower().replace("_", " ")
        expected = (ACCEPTED in candidate.expect) == verdict.accepted
        self.verdicts += 1
        self.reasons[word] += 1
        if not expected or verdict.reason is Reason.INFRASTRUCTURE:
            self.wrong.append(f"{word}: {verdict.detail}; seeds {list(verdict.seeds)}")
        for draw in verdict.draws:
            self.largest[draw.kind] = max(self.largest[draw.kind], draw.ratio)
        self.refused.update({draw.kind for draw in verdict.draws if not draw.passed})
        if verdict.draws:
            self.least = min(self.least, max(draw.ratio for draw in verdict.draws))

    @property
    def worst(self) -> tuple[float, str]:
        """(largest ratio of error to bound over all draws, kind of that draw)."""
        return max(((ratio, kind) for kind, ratio in self.largest.items()), default=(0.0, ""))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "task": self.task,
            "verdicts": self.verdicts,
            "wrong": self.wrong,
            "reasons": dict(self.reasons),
            "largest": dict(self.largest),
            "refused": dict(self.refused),
            "least": self.least,
        }


def main() -> int:
    options = _options()
    pattern = re.compile(options.only)
    chosen = [
        c
        for c in everything()
        if c.kind == options.kind
        and pattern.search(c.name)
        and c.device == "cpu"
        and not (c.timed or c.apart)
        and is_safe(c)
    ]
    records = []
    with open_judges() as opened:
        for record in _repeated(opened, chosen, options.repeats):
            records.append(record)
            print(_line(record), flush=True)
            if options.json:
                lines = ",\n".join(json.dumps(r.to_json()) for r in records)
                Path(options.json).write_text(f"[\n{lines}\n]\n")
    wrong = sum(len(record.wrong) for record in records)
    verdicts = sum(record.verdicts for record in records)
    print(f"{len(records)} candidates, {verdicts} verdicts, {wrong} wrong")
    return int(bool(wrong))


def _repeated(opened: CorpusJudges, chosen: list[Candidate], repeats: int) -> Iterator[Record]:
    for candidate in chosen:
        record = Record(candidate.name, candidate.kind, candidate.task)
        for _ in range(repeats):
            judgement = opened.for_candidate(candidate).judge(candidate.attempt, None)
            record.add(candidate, judgement.verdict)
        yield record


def _line(record: Record) -> str:
    """Return a line of text for the candidate, and another line for each wrong verdict."""
    ratio, kind = record.worst
    note = "near" if record.kind == "honest" and ratio > NEAR else ""
    if record.kind != "honest":
        ratio, kind = record.least, "smallest of a verdict"
    reasons = ", ".join(f"{word} {count}" for word, count in record.reasons.most_common())
    text = f"{record.name:28} {ratio:8.3g} ({kind}) {reasons} {note}"
    return "\n".join([text.rstrip(), *(f"    {detail}" for detail in record.wrong)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", choices=("honest", "bug", "exploit"), default="honest")
    parser.add_argument("--only", default="", help="pattern that the name must match")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
