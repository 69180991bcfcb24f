"""Long measurements in steps: done as far as the time allows, gone on with where their file ends.

A part is a list of named steps. Each step's row is in the file before the next step begins, so that
whoever is killed loses the one that was under way. A step that raises is recorded with what it
said, and the others go on. Steps whose names begin with the same word hang together: after three
of them failed in a row the rest is left for this call. Not covered: a step that never returns.
Invariant: the file is whole at every moment.
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
DONE, MISSED, MORE, LACKING = range(4)
"""Exit codes: every gate holds; one is missed; there is more to do; a part lacks what it needs."""


@dataclass(frozen=True)
class Part:
    """One kind of row, how to get those that are still missing, and what they say together."""

    name: str
    steps: list[str]
    take: Callable[[list[str]], Rows]
    """Given the steps that are missing, in their order: the row of each, one after another."""
    said: Callable[[list[Row]], str]
    """Of rows that did not fail."""
    held: Callable[[list[Row]], bool]
    """Of all rows, those with an `error` too."""
    lacks: str = ""
    """What it needs and was not given."""
    of: str = ""
    """The part whose rows it reads, where it takes none itself."""

    def rows(self, found: Row) -> list[Row]:
        """Those of its steps that are known, failed ones too."""
        return list(found["rows"].get(self.of or self.name, []))

    def missing(self, found: Row) -> list[str]:
        known = {row["step"] for row in self.rows(found)}
        return [step for step in self.steps if step not in known]


def go_on(parts: list[Part], found: Row, out: Path, end: float) -> None:
    """Take the steps that are missing until there are none, or until `end` (monotonic seconds)."""
    for part in parts:
        failed: dict[str, int] = {}
        while (missing := _missing(part, found, failed)) and time.monotonic() < end:
            _go_on(part, missing, failed, found, out, end)


def _missing(part: Part, found: Row, failed: dict[str, int]) -> list[str]:
    """Without those that hang together with steps that failed too often."""
    return [step for step in part.missing(found) if failed.get(_group(step), 0) < MOST_FAILED]


def _group(step: str) -> str:
    return step.split()[0]


def _go_on(
    part: Part, missing: list[str], failed: dict[str, int], found: Row, out: Path, end: float
) -> None:
    """Until a step raises or the time is over. `failed` counts what failed in a row, by group."""
    begun, under_way = time.monotonic(), ""
    try:
        with closing(part.take(missing)) as rows:
            for step in missing:
                begun = time.monotonic()
                if begun >= end or failed.get(_group(step), 0) >= MOST_FAILED:
                    return
                under_way = step
                row = {"step": step, **next(rows)}
                failed[_group(step)] = failed.get(_group(step), 0) + 1 if "error" in row else 0
                _record(part, found, out, row, begun)
                under_way = ""
    except Exception as error:  # noqa: BLE001 - the boundary of a step: the others go on
        said = "".join(traceback.format_exception(error))[-2000:]
        if not under_way:
            print(f"{part.name}: in closing: {said}", flush=True)
            return
        failed[_group(under_way)] = failed.get(_group(under_way), 0) + 1
        what = {"error": f"{type(error).__name__}: {error}"[:500], "traceback": said}
        _record(part, found, out, {"step": under_way, **what}, begun)


def _record(part: Part, found: Row, out: Path, row: Row, begun: float) -> None:
    rows = found["rows"].setdefault(part.name, [])
    rows.append(row)
    write(out, found)
    failed = f" FAILED: {row['error'][:200]}" if "error" in row else ""
    seconds = time.monotonic() - begun
    print(f"{part.name}: {row['step']}: {seconds:.1f} s{failed}", flush=True)


def concluded(parts: list[Part], found: Row) -> int:
    """Print what each part says by now, and tell the exit code."""
    codes = []
    for part in parts:
        rows = part.rows(found)
        whole, missing = well(rows), len(part.missing(found))
        failed = len(rows) - len(whole)
        what = f"needs {part.lacks}" if part.lacks else part.said(whole) if whole else "nothing yet"
        what += f"; {failed} failed" * bool(failed)
        what += f"; {missing} of {len(part.steps)} are still to do" * bool(missing)
        held = bool(whole) and part.held(rows)
        codes.append(
            LACKING if part.lacks else MORE if missing or not rows else DONE if held else MISSED
        )
        print(f"{part.name:<11}{what}{' (missed)' * (codes[-1] == MISSED)}")
    return next((code for code in (MORE, MISSED, LACKING) if code in codes), DONE)


def read(out: Path) -> Row | None:
    """What an earlier call left; None where there was none. Raises OSError, ValueError."""
    if not out.exists():
        return None
    found = json.loads(out.read_text())
    if not isinstance(found, dict) or not {"device", "commands", "rows"} <= found.keys():
        raise ValueError("is no file of these measurements")
    return found


def write(out: Path, found: Row) -> None:
    """Whole or not at all: the command may be killed at any moment."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(out)


def well(rows: list[Row]) -> list[Row]:
    """Those of steps that did not fail."""
    return [row for row in rows if "error" not in row]


def forget_failed(found: Row) -> None:
    """So that the steps that failed are taken again."""
    for name, rows in found["rows"].items():
        found["rows"][name] = well(rows)
