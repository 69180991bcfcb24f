"""Write the data card of a task set: a Markdown file, and an HTML page with the same tables and
charts.

The charts and their style are those of `cuagent bench`.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuagent.bench.charts import bars
from cuagent.bench.page import STYLE
from cuagent.synth.reasons import MEANINGS, Reason

ACCEPTED = "accepted"
MILLISECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
"""Edges in milliseconds of the bins in the chart of eager times."""
PAPER_COUNTS = {1: 0.034, 2: 0.838, 3: 0.076, 4: 0.028, 5: 0.012}
"""Shares of CUDA-Agent-Ops-6K by number of operators (Table 3 of arXiv 2602.24286)."""


def yields(reasons: Iterable[str | None]) -> dict[str, int]:
    """Return the number of candidates by outcome: first `accepted`, then the reasons of rejection
    in the order of the checks.

    In `reasons` None stands for an accepted candidate.
    """
    found = Counter(reason or ACCEPTED for reason in reasons)
    order = [ACCEPTED, *(reason.value for reason in Reason)]
    return {name: found[name] for name in order if found[name]}


def entropy(counts: Mapping[Any, int]) -> float:
    """Return the Shannon entropy in bits of the distribution with the given counts."""
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values() if n) if total else 0.0


def distributions(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the distributions for the card's charts: for each chart's title, the number of tasks
    in each class."""
    times = [row["baselines"][0]["eager_s"] * 1e3 for row in rows]
    operators = Counter(name for row in rows for name in row["ops"])
    families = Counter(family for row in rows for family in set(row["families"]))
    return {
        "Operators of a task": _sorted(Counter(str(len(row["ops"])) for row in rows)),
        "Families of operators": _frequent(families),
        "Most frequent operators": _frequent(operators, 20),
        "dtype": _frequent(Counter(row["dtype"] for row in rows)),
        "Inputs": _sorted(Counter(str(len(row["shapes"])) for row in rows)),
        "Eager time": {_bin(n): _in_bin(times, n) for n in range(len(MILLISECONDS) + 1)},
        "Grade": _sorted(Counter(str(row["grade"]) for row in rows)),
        "Split": _frequent(Counter(row["split"] for row in rows)),
    }


def write_card(
    rows: Sequence[Mapping[str, Any]],
    found: Mapping[str, int],
    about: Mapping[str, Any],
    folder: Path,
) -> None:
    """Write the data card to `folder` as README.md and card.html.

    `found`: number of candidates by outcome. `about`: further facts about the set, by name.
    """
    operators = Counter(name for row in rows for name in row["ops"])
    lines = {
        "tasks": str(len(rows)),
        "different operators": str(len(operators)),
        "entropy of the operators": f"{entropy(operators):.2f} bits",
        "entropy of the number of operators": f"{entropy(Counter(len(r['ops']) for r in rows)):.2f}"
        f" bits (CUDA-Agent-Ops-6K: {_paper_entropy():.2f})",
        **{name: str(value) for name, value in about.items()},
    }
    charts = distributions(rows)
    (folder / "README.md").write_text(_markdown(lines, found, charts), encoding="utf-8")
    (folder / "card.html").write_text(_page(lines, found, charts), encoding="utf-8")


def _paper_entropy() -> float:
    return entropy({n: round(1e4 * share) for n, share in PAPER_COUNTS.items()})


def _markdown(
    lines: Mapping[str, str], found: Mapping[str, int], charts: Mapping[str, Mapping[str, int]]
) -> str:
    parts = ["# A set of kernel tasks\n", *(f"- {name}: {value}" for name, value in lines.items())]
    parts.append("\n## Yield\n\n| outcome | candidates | meaning |\n|---|---:|---|")
    parts += [f"| {name} | {n} | {_meaning(name)} |" for name, n in found.items()]
    for title, counts in charts.items():
        parts.append(f"\n## {title}\n\n| | tasks |\n|---|---:|")
        parts += [f"| {name} | {n} |" for name, n in counts.items()]
    return "\n".join(parts) + "\n"


def _page(
    lines: Mapping[str, str], found: Mapping[str, int], charts: Mapping[str, Mapping[str, int]]
) -> str:
    about = "".join(
        f'<div class="dim">{html.escape(name)}: {html.escape(value)}</div>'
        for name, value in lines.items()
    )
    rows = "".join(
        f'<tr><td class="text">{html.escape(name)}</td><td>{n}</td>'
        f'<td class="text long">{html.escape(_meaning(name))}</td></tr>'
        for name, n in found.items()
    )
    figures = "".join(
        f"<figure>{bars(counts)}<figcaption>{html.escape(title)}</figcaption></figure>"
        for title, counts in charts.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>cuagent synth</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>A set of kernel tasks</h1>{about}"
        '<h2>Yield</h2><div class="scroll"><table><tr><th class="text">outcome</th>'
        f'<th>candidates</th><th class="text">meaning</th></tr>{rows}</table></div>'
        f'<h2>Distributions</h2><div class="charts">{figures}</div></body></html>\n'
    )


def _meaning(name: str) -> str:
    return next((text for reason, text in MEANINGS.items() if reason.value == name), "")


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)}


def _frequent(counts: Counter[str], most: int | None = None) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])


def _in_bin(values: Sequence[float], n: int) -> int:
    low = MILLISECONDS[n - 1] if n else 0.0
    high = MILLISECONDS[n] if n < len(MILLISECONDS) else math.inf
    return sum(low <= value < high for value in values)


def _bin(n: int) -> str:
    if n == 0:
        return f"below {MILLISECONDS[0]:g} ms"
    if n == len(MILLISECONDS):
        return f"above {MILLISECONDS[-1]:g} ms"
    return f"{MILLISECONDS[n - 1]:g} to {MILLISECONDS[n]:g} ms"
