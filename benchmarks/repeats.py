"""Honest candidates and seeded bugs before this judge again and again, on fresh seeds.

    python benchmarks/repeats.py [--kind honest|bug|exploit] [--only REGEX] [--repeats N]
                                 [--json OUT]

One verdict says little about a rule that draws its inputs by chance. This says how often each
candidate ends other than it must, on which kind of draw, and how near it comes to the bound: the
largest error over its bound for an honest candidate, for a bug the least of what refused it.
What would end a judge, and what is a matter of timing, is left out; `corpus.py` has it.
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
"""Of the bound: an honest candidate that comes nearer is named."""


@dataclass
class Record:
    """What came of one candidate in all its verdicts."""

    name: str
    kind: str
    task: str
    verdicts: int = 0
    wrong: list[str] = field(default_factory=list)
    """Detail of each verdict that is not what the corpus demands."""
    reasons: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """For each kind of draw the largest error over its bound."""
    refused: Counter[str] = field(default_factory=Counter)
    """For each kind of draw in how many verdicts it spoke against the candidate."""
    least: float = float("inf")
    """Of the largest error over its bound in each verdict."""

    def add(self, candidate: Candidate, verdict: Verdict) -> None:
        word = verdict.reason.name.lower().replace("_", " ")
        demanded = (ACCEPTED in candidate.expect) == verdict.accepted
        self.verdicts += 1
        self.reasons[word] += 1
        if not demanded or verdict.reason is Reason.INFRASTRUCTURE:
            self.wrong.append(f"{word}: {verdict.detail}; seeds {list(verdict.seeds)}")
        for draw in verdict.draws:
            self.largest[draw.kind] = max(self.largest[draw.kind], draw.ratio)
        self.refused.update({draw.kind for draw in verdict.draws if not draw.passed})
        if verdict.draws:
            self.least = min(self.least, max(draw.ratio for draw in verdict.draws))

    @property
    def worst(self) -> tuple[float, str]:
        """Largest error over its bound, and the kind of draw."""
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
    """One line, and one more for each verdict that was wrong."""
    ratio, kind = record.worst
    mark = "near" if record.kind == "honest" and ratio > NEAR else ""
    if record.kind != "honest":
        ratio, kind = record.least, "least of a verdict"
    reasons = ", ".join(f"{word} {count}" for word, count in record.reasons.most_common())
    text = f"{record.name:28} {ratio:8.3g} ({kind}) {reasons} {mark}"
    return "\n".join([text.rstrip(), *(f"    {detail}" for detail in record.wrong)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", choices=("honest", "bug", "exploit"), default="honest")
    parser.add_argument("--only", default="", help="of the name")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
