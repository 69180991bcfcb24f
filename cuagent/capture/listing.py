"""Format the modules of a script as a text table: calls, time, share of the time, tensor shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST_ROWS = 60
LEAST_SHARE = 0.01
"""Least share of the script's time for which a nested module is shown in the table."""

MOST_SHARE = 0.99
"""Largest share of the time for which the limit 1 / (1 - share) is shown; for larger shares the
limit is noise."""


def amdahl(share: float, speedup: float) -> float:
    """Return the speedup of a script in which a part with the given share of the time becomes
    `speedup` times as fast (Amdahl's law)."""
    return 1 / (1 - share + share / speedup)


def rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each recorded module in the answer, with its share of the time, sorted by
    module name."""
    window = answer["window_s"]
    found = [
        entry | {"share": min(1.0, entry["seconds"] / window) if window else 0.0}
        for entry in answer["modules"]
    ]
    return sorted(found, key=lambda entry: _order(entry["name"]))


def table(answer: dict[str, Any]) -> list[str]:
    """Return the lines of the text table of modules."""
    listed = rows(answer)
    shown = [e for e in listed if e["share"] >= LEAST_SHARE or e["name"].count(".") < 2]
    shown = sorted(
        sorted(shown, key=lambda e: -e["share"])[:MOST_ROWS], key=lambda e: _order(e["name"])
    )
    cells = [("module", "class", "calls", "time", "share", "shapes of its tensors")]
    for entry in shown:
        shapes = entry["shapes"]
        more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
        indent = "  " * entry["name"].count(".")
        cells.append(
            (
                indent + entry["name"],
                entry["class"],
                str(entry["calls"]),
                f"{entry['seconds'] * 1e3:.1f} ms",
                f"{entry['share']:.0%}",
                (shapes[0][0] if shapes else "") + more,
            )
        )
    wide = [max(len(row[n]) for row in cells) for n in range(5)]
    lines = [
        "  ".join(
            text.ljust(wide[n]) if n < 2 else text.rjust(wide[n]) for n, text in enumerate(row[:5])
        )
        + f"  {row[5]}"
        for row in cells
    ]
    left = len(listed) - len(shown)
    lines += [f"{left} more with less than {LEAST_SHARE:.0%} are left out"] if left else []
    return [*(line.rstrip() for line in lines), "", *_about(answer)]


def _about(answer: dict[str, Any]) -> list[str]:
    steps = answer["steps"]
    where = "of its only step, warm-up included" if steps == 1 else f"of {steps - 1} steps"
    lines = [
        f"share: of {answer['window_s']:.3g} s, the wall time {where}; the script ran "
        f"{answer['script_s']:.3g} s. Backward passes and the optimizer belong to no module."
    ]
    if answer["compiled"]:
        lines.append("The script uses torch.compile; it ran without it here.")
    return lines


def gain_line(share: float, *, trains: bool = False) -> str:
    """Return a line on the speedup of the script that a faster module can give.

    `share` is the share of the module's forward in the time of the script's steps. With `trains`
    the module has a backward pass too, so no limit follows from it.
    """
    if trains:
        return (
            f"the module's forward takes {share:.0%} of the script's steps; its backward is not "
            "measured, so the possible gain is not known"
        )
    text = (
        f"the module takes {share:.0%} of the script's steps: twice as fast it makes them "
        f"{amdahl(share, 2):.2f}x as fast"
    )
    return text if share > MOST_SHARE else f"{text}; the limit is {1 / (1 - share):.2f}x"


def calls_text(count: int) -> str:
    """Return a number of calls as words that are aligned in a column: `     8 calls`."""
    return f"{count:>6} {'call ' if count == 1 else 'calls'}"


def shape_lines(manifest: dict[str, Any]) -> list[str]:
    """Return one line of text for each recorded shape, the most frequent first."""
    shapes: Sequence[dict[str, Any]] = sorted(manifest["shapes"], key=lambda s: -s["calls"])
    lines = []
    modes = {bool(shape.get("training")) for shape in shapes}
    for shape in shapes:
        mode = " (training)" if len(modes) > 1 and shape.get("training") else ""
        tensors = ", ".join(
            f"{known['name']} {known['dtype']}[{','.join(map(str, known['shape']))}]"
            for known in shape["inputs"]
        )
        lines.append(
            f"{calls_text(shape['calls'])}  {shape['task'] or 'original module'}: {tensors}{mode}"
        )
    return lines


def _order(name: str) -> list[tuple[int, int | str]]:
    parts = name.split(".")
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]
