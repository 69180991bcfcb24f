"""Run long measurements in resumable steps, within a time limit.

A part is a list of named steps. A step's result is a row (a dictionary), which is written to the
file before the next step starts. So a killed program loses only the current step. If a step raises
an error, its row has the error, and the other steps continue. Steps whose names start with the same
word form a group: after three failures in a row, the rest of the group is skipped until the next
call of the program.
Not covered: a step that never returns.
Invariant: the file is complete at every moment.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Rows = Generator[Row, None, None]
MOST_FAILED = 3
"""Number of failures in a row after which the rest of a group is skipped."""
DONE, MISSED, MORE, LACKING = range(4)
"""Exit codes: all gates are passed; a gate is missed; steps remain; a part lacks a requirement."""


@dataclass(frozen=True)
class Part:
    """A list of steps of one measurement, with functions that measure and evaluate their rows."""

    name: str
    steps: list[str]
    measure: Callable[[list[str]], Rows]
    """Generator function that measures the given missing steps and yields their rows, in order."""
    summarize: Callable[[list[Row]], str]
    """Function that returns a summary, as text, of the rows without an error."""
    is_passed: Callable[[list[Row]], bool]
    """Function that returns True if the gate is passed, given all rows, including those with an
    error."""
    requirement: str = ""
    """Missing requirement, such as a GPU; empty if there is none."""
    rows_of: str = ""
    """Name of another part whose rows this part evaluates, if it has no steps; empty: its own
    rows."""

    def rows(self, found: Row) -> list[Row]:
        """Return this part's rows, including those with an error, from `found`, the content of the
        file."""
        return list(found["rows"].get(self.rows_of or self.name, []))

    def missing(self, found: Row) -> list[str]:
        finished = {row["step"] for row in self.rows(found)}
        return [step for step in self.steps if step not in finished]


def run_missing_steps(parts: list[Part], found: Row, out: Path, end: float) -> None:
    """Run the missing steps of all parts until none is left, or until the time `end` (a
    time.monotonic() value).

    `found` is the content of the file `out`; both are updated after each step.
    """
    for part in parts:
        failed: dict[str, int] = {}
        while (missing := _missing(part, found, failed)) and time.monotonic() < end:
            _run_steps(part, missing, failed, found, out, end)


def _missing(part: Part, found: Row, failed: dict[str, int]) -> list[str]:
    """Return the part's missing steps, without those of groups that failed `MOST_FAILED` times in a
    row."""
    return [step for step in part.missing(found) if failed.get(_group(step), 0) < MOST_FAILED]


def _group(step: str) -> str:
    return step.split()[0]


def _run_steps(
    part: Part, missing: list[str], failed: dict[str, int], found: Row, out: Path, end: float
) -> None:
    """Run steps until one raises an error, or until the time `end`. `failed`: failures in a row by
    group."""
    start, current = time.monotonic(), ""
    try:
        with closing(part.measure(missing)) as rows:
            for step in missing:
                start = time.monotonic()
                if start >= end or failed.get(_group(step), 0) >= MOST_FAILED:
                    return
                current = step
                row = {"step": step, **next(rows)}
                failed[_group(step)] = failed.get(_group(step), 0) + 1 if "error" in row else 0
                _record(part, found, out, row, start)
                current = ""
    except Exception as error:  # noqa: BLE001 - the boundary of a step; the others continue
        trace = "".join(traceback.format_exception(error))[-2000:]
        if not current:
            print(f"{part.name}: in closing: {trace}", flush=True)
            return
        failed[_group(current)] = failed.get(_group(current), 0) + 1
        failure = {"error": f"{type(error).__name__}: {error}"[:500], "traceback": trace}
        _record(part, found, out, {"step": current, **failure}, start)


def _record(part: Part, found: Row, out: Path, row: Row, start: float) -> None:
    rows = found["rows"].setdefault(part.name, [])
    rows.append(row)
    write(out, found)
    failed = f" FAILED: {row['error'][:200]}" if "error" in row else ""
    seconds = time.monotonic() - start
    print(f"{part.name}: {row['step']}: {seconds:.1f} s{failed}", flush=True)


def print_conclusion(parts: list[Part], found: Row) -> int:
    """Print the summary of each part; return the program's exit code."""
    codes = []
    for part in parts:
        rows = part.rows(found)
        good, missing = successful(rows), len(part.missing(found))
        failed = len(rows) - len(good)
        text = (
            f"needs {part.requirement}"
            if part.requirement
            else part.summarize(good)
            if good
            else "nothing yet"
        )
        text += f"; {failed} failed" * bool(failed)
        text += f"; {missing} of {len(part.steps)} are still to do" * bool(missing)
        held = bool(good) and part.is_passed(rows)
        codes.append(
            LACKING
            if part.requirement
            else MORE
            if missing or not rows
            else DONE
            if held
            else MISSED
        )
        print(f"{part.name:<11}{text}{' (missed)' * (codes[-1] == MISSED)}")
    return next((code for code in (MORE, MISSED, LACKING) if code in codes), DONE)


def read(out: Path) -> Row | None:
    """Return the content of the file of earlier calls; None if there is no file. Raises OSError,
    ValueError."""
    if not out.exists():
        return None
    found = json.loads(out.read_text())
    if not isinstance(found, dict) or not {"device", "commands", "rows"} <= found.keys():
        raise ValueError("is no file of these measurements")
    return found


def write(out: Path, found: Row) -> None:
    """Write the file atomically, so that it is complete if the program is killed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(out)


def successful(rows: list[Row]) -> list[Row]:
    """Return the rows without an error."""
    return [row for row in rows if "error" not in row]


def forget_failed(found: Row) -> None:
    """Remove the rows with an error from `found`, so that their steps run again."""
    for name, rows in found["rows"].items():
        found["rows"][name] = successful(rows)
