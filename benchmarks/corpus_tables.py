"""Tables of `corpus.py`: what each judge says about the candidates.

`corpus.py` puts tests/corpus on the path before it imports this module.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from corpus import ACCEPTED
from judging import NOT_RUN

OURS = "cuagent"


def summary(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return a Markdown table with the numbers of wrong, judged and not run candidates for each
    judge."""
    lines = [
        "| | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    kinds = {
        "exploits accepted": lambda r: r["kind"] == "exploit",
        "honest candidates rejected": lambda r: r["kind"] == "honest",
        "seeded bugs accepted": lambda r: r["kind"] == "bug" and ACCEPTED not in r["expect"],
        "equivalent changes rejected": lambda r: r["kind"] == "bug" and ACCEPTED in r["expect"],
    }
    for title, belongs in kinds.items():
        cells = []
        for name in names:
            of_kind = [row[name] for row in rows if belongs(row)]
            run = [result for result in of_kind if result["word"] != NOT_RUN]
            wrong = sum(_wrong(name, result, "rejected" in title) for result in run)
            omitted = len(of_kind) - len(run)
            omission = f" ({omitted} not run)" if omitted else ""
            cells.append(f"**{wrong}** of {len(run)}{omission}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _wrong(name: str, result: dict[str, Any], honest: bool) -> bool:
    if name == OURS:
        return not result["right"]
    return (result["word"] == "passes") is not honest


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return Markdown tables with a line for each candidate, by kind."""
    lines = []
    for kind, title in (
        ("exploit", "Exploits"),
        ("honest", "Honest candidates"),
        ("bug", "Seeded bugs"),
    ):
        of_kind = [row for row in rows if row["kind"] == kind]
        of_kind.sort(
            key=lambda r: (r["row"].rjust(3, "0") if r["row"].isdigit() else "999", r["name"])
        )
        lines += [f"\n## {title}\n", "| row | name | task | what | " + " | ".join(names) + " |"]
        lines.append("|---|---|---|---|" + "---|" * len(names))
        for row in of_kind:
            cells = [_cell(name, row[name]) for name in names]
            what = row["what"].replace("|", "/")
            lines.append(
                f"| {row['row']} | {row['name']} | {row['task']} | {what} | "
                + " | ".join(cells)
                + " |"
            )
    words = Counter(row[OURS]["word"] for row in rows)
    lines.append(
        "\nReasons that cuagent gave: "
        + ", ".join(f"{w} {n}" for w, n in words.most_common())
        + "."
    )
    return "\n".join(lines)


def _cell(name: str, result: dict[str, Any]) -> str:
    word = result["word"]
    if name == OURS and result["right"] is False:
        return f"**{word}** (open)"
    return word
