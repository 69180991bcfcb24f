"""Exploits, honest candidates and seeded bugs before this judge and before the rules of others.

    python benchmarks/corpus.py [--kernelbench PATH] [--cuda-agent PATH] [--json OUT] [--doc OUT]
                                [--only REGEX]

The other projects are given as checkouts; `rules.py` runs their own functions. What would harm the
machine is shown to this judge only, in its sandbox; what cheats a clock, or needs CUDA where there
is none, is "not run" by others. `--doc` replaces what follows `<!-- results -->` in a page.
Exit 1 if an exploit or a bug was accepted, or an honest candidate refused, by this judge.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "corpus"))

from corpus import ACCEPTED, Candidate, everything, task_path  # noqa: E402
from judging import Outcome, judged, judged_apart, judges, safe  # noqa: E402

OURS, THEIRS = "cuagent", ("kernelbench", "cuda-agent")
NOT_RUN = "not run"
MARK = "<!-- results -->"


def main() -> int:
    options = _options()
    pattern = re.compile(options.only)
    candidates = [c for c in everything() if pattern.search(_key(c))]
    checkouts = {"kernelbench": options.kernelbench, "cuda-agent": options.cuda_agent}
    results: dict[str, dict[str, dict[str, Any]]] = {OURS: _ours(candidates)}
    for name, checkout in checkouts.items():
        if checkout is not None:
            results[name] = _theirs(name, checkout, candidates)
    rows = [_row(candidate, results) for candidate in candidates]
    summary = _summary(rows, list(results))
    print(summary)
    if options.json:
        Path(options.json).write_text(_json(rows))
    if options.doc:
        page = Path(options.doc)
        kept = page.read_text().partition(MARK)[0] if page.is_file() else ""
        page.write_text(f"{kept}{MARK}\n\n{summary}\n\n{_table(rows, list(results))}\n")
    wrong = [row for row in rows if row[OURS]["right"] is False]
    for row in wrong:
        print(f"{row['kind']} {row['name']}: {row[OURS]['word']}: {row[OURS]['detail']}")
    return int(bool(wrong))


def _json(rows: list[dict[str, Any]]) -> str:
    """One candidate a line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"about": {json.dumps(_about())}, "rows": [\n{lines}\n]}}\n'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--json")
    parser.add_argument("--doc")
    parser.add_argument("--only", default="", help="of kind/name, as in honest/softmax")
    return parser.parse_args()


def _ours(candidates: list[Candidate]) -> dict[str, dict[str, Any]]:
    here = [c for c in candidates if c.device == "cpu" or _cuda()]
    found = {_key(c): _skipped("needs CUDA") for c in candidates}
    with judges() as opened:
        for number, candidate in enumerate(here, 1):
            if not safe(candidate):
                found[_key(candidate)] = _skipped(f"no sandbox: {candidate.harm}")
                continue
            apart = candidate.apart
            outcome = judged_apart(candidate) if apart else judged(opened.of(candidate), candidate)
            found[_key(candidate)] = asdict(outcome)
            if sys.stderr.isatty():
                print(f"\r{number}/{len(here)} {candidate.name:<40}", end="", file=sys.stderr)
    return found


def _theirs(name: str, checkout: Path, candidates: list[Candidate]) -> dict[str, dict[str, Any]]:
    """Only tasks whose own reference the rule accepts are run; the others are outside its reach."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "rules.py"), name, str(checkout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(task: str, files: Iterable[tuple[str, str]]) -> dict[str, Any]:
            place = Path(folder, "candidate")
            shutil.rmtree(place, ignore_errors=True)
            for path, text in files:
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            print(
                json.dumps({"task": str(task_path(task)), "candidate": str(place)}),
                file=process.stdin,
                flush=True,
            )
            return json.loads(process.stdout.readline())

        reachable = {}
        for task in {c.task for c in candidates}:
            text = task_path(task).read_text().replace("class Model(", "class ModelNew(")
            answer = ask(task, [("model_new.py", text)])
            reachable[task] = "" if answer["word"] == "passes" else answer["detail"]
            if (
                answer["word"] != "passes"
                and name == "cuda-agent"
                and "not allowed" in answer["detail"]
            ):
                reachable[task] = (
                    ""  # it forbids torch.nn.functional to candidates, not to references
                )
        for candidate in candidates:
            if candidate.device == "cuda" and not _cuda():
                answer = _skipped("needs CUDA")
            elif candidate.timed:
                answer = _skipped("a cheat of timing; its clock needs CUDA")
            elif candidate.harm:
                answer = _skipped(f"no sandbox there: {candidate.harm}")
            elif reachable[candidate.task]:
                answer = _skipped(
                    f"it rejects this task's own reference: {reachable[candidate.task]}"
                )
            else:
                answer = ask(candidate.task, candidate.attempt.files)
            found[_key(candidate)] = answer
        process.stdin.close()
        process.wait()
    return found


def _row(candidate: Candidate, results: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    about = {
        name: getattr(candidate, name)
        for name in ("name", "kind", "row", "task", "device", "timed", "what", "expect", "open")
    }
    return about | {judge: found[_key(candidate)] for judge, found in results.items()}


def _summary(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Counts of what each judge got wrong, right, and was not shown."""
    lines = [
        "| | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    kinds = {
        "exploits accepted": lambda r: r["kind"] == "exploit",
        "honest candidates refused": lambda r: r["kind"] == "honest",
        "seeded bugs accepted": lambda r: r["kind"] == "bug" and ACCEPTED not in r["expect"],
        "equivalent changes refused": lambda r: r["kind"] == "bug" and ACCEPTED in r["expect"],
    }
    for title, belongs in kinds.items():
        cells = []
        for name in names:
            mine = [row[name] for row in rows if belongs(row)]
            run = [result for result in mine if result["word"] != NOT_RUN]
            wrong = sum(_wrong(name, result, "refused" in title) for result in run)
            left = len(mine) - len(run)
            cells.append(f"**{wrong}** of {len(run)}" + (f" ({left} not run)" if left else ""))
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _wrong(name: str, result: dict[str, Any], honest: bool) -> bool:
    if name == OURS:
        return not result["right"]
    return (result["word"] == "passes") is not honest


def _table(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = []
    order = {"exploit": 0, "honest": 1, "bug": 2}
    for kind, title in (
        ("exploit", "Exploits"),
        ("honest", "Honest candidates"),
        ("bug", "Seeded bugs"),
    ):
        mine = [row for row in rows if row["kind"] == kind]
        mine.sort(
            key=lambda r: (
                order[kind],
                r["row"].rjust(3, "0") if r["row"].isdigit() else "999",
                r["name"],
            )
        )
        lines += [f"\n## {title}\n", "| row | name | task | what | " + " | ".join(names) + " |"]
        lines.append("|---|---|---|---|" + "---|" * len(names))
        for row in mine:
            cells = [_cell(name, row[name]) for name in names]
            what = row["what"].replace("|", "/")
            lines.append(
                f"| {row['row']} | {row['name']} | {row['task']} | {what} | "
                + " | ".join(cells)
                + " |"
            )
    words = Counter(row[OURS]["word"] for row in rows)
    lines.append(
        "\nReasons given here: " + ", ".join(f"{w} {n}" for w, n in words.most_common()) + "."
    )
    return "\n".join(lines)


def _cell(name: str, result: dict[str, Any]) -> str:
    word = result["word"]
    if name == OURS and result["right"] is False:
        return f"**{word}** (open)"
    return word


def _key(candidate: Candidate) -> str:
    return f"{candidate.kind}/{candidate.name}"


def _skipped(why: str) -> dict[str, Any]:
    return asdict(Outcome(NOT_RUN, why, True, 0.0))


def _about() -> dict[str, str]:
    import torch

    return {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if _cuda() else "cpu",
    }


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
