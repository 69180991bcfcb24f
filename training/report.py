"""The paper's four curves from metrics.jsonl, as one HTML file without scripts.

Reward, entropy, explained variance (centred, over all tokens and in the last quartile) and the
length-clipped ratio, by PPO iteration: figures 4 and 5 of CUDA Agent, to be laid beside them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuagent.training.metrics import read_metrics
from cuagent.training.segments import RecordError

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 220, 52, 26
COLOURS = ("#2b6cb0", "#c05621")
CURVES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("training reward", ("reward",)),
    ("actor entropy (nats)", ("entropy",)),
    ("explained variance: all tokens, last quartile", ("ev", "ev_q4")),
    ("length-clipped ratio", ("length_clipped",)),
)
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>PPO</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; color: #222; background: #fff }}
figure {{ display: inline-block; margin: 0 1.5em 1.5em 0 }}
td, th {{ padding: 0.2em 1em 0.2em 0; text-align: left }}
text {{ font: 11px sans-serif; fill: #555 }}
</style>
<h1>PPO: {iterations} iterations</h1>
{table}
{figures}
"""


def write_report(folder: Path) -> Path:
    """Write `report.html` into a PPO folder, or a demo's. Raises RecordError."""
    path = next(
        (p for p in (folder / "metrics.jsonl", folder / "ppo" / "metrics.jsonl") if p.exists()),
        None,
    )
    if path is None:
        raise RecordError(f"{folder}: no metrics.jsonl of PPO; cuagent train ppo writes one")
    rows = [m for m in read_metrics(path) if m.get("stage") == "ppo"]
    figures = "".join(figure(title, names, rows) for title, names in CURVES)
    results = folder / "results.json"
    stages = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    out = folder / "report.html"
    text = PAGE.format(iterations=len(rows), table=table(stages), figures=figures)
    out.write_text(text, encoding="utf-8")
    return out


def table(stages: dict[str, dict[str, Any]]) -> str:
    """Held-out figures by stage."""
    if not stages:
        return ""
    names = ("reward", "correct", "faster_than_compile", "episodes")
    head = "".join(f"<th>{html.escape(n.replace('_', ' '))}</th>" for n in ("held out", *names))
    body = "".join(
        f"<tr><td>{html.escape(stage)}</td>"
        + "".join(f"<td>{m[name]:.3g}</td>" for name in names)
        + "</tr>"
        for stage, m in stages.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def figure(title: str, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """One diagram; a gap where a figure is not a number."""
    points = [m[n] for n in names for m in rows if m.get(n) is not None]
    low, high = min([0.0, *points]), max([0.0, *points])
    span = (high - low) or 1.0
    step = (WIDTH - LEFT) / max(len(rows) - 1, 1)

    def y(value: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - (value - low) / span) + 4

    lines = []
    for name, colour in zip(names, COLOURS, strict=False):
        path, pen = "", "M"
        for at, m in enumerate(rows):
            if m.get(name) is None:
                pen = "M"
                continue
            path += f"{pen}{LEFT + at * step:.1f} {y(m[name]):.1f}"
            pen = "L"
        lines.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    axes = (
        f'<path d="M{LEFT} {y(high):.1f}V{y(low):.1f}H{WIDTH}" fill="none" stroke="#999"/>'
        f'<path d="M{LEFT} {y(0):.1f}H{WIDTH}" stroke="#ddd"/>'
        f'<text x="0" y="{y(high) + 8:.1f}">{high:.3g}</text>'
        f'<text x="0" y="{y(low):.1f}">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT}">0</text>'
        f'<text x="{WIDTH - 24}" y="{HEIGHT}">{max(len(rows) - 1, 0)}</text>'
    )
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg width="{WIDTH}" height="{HEIGHT + 6}">{axes}{"".join(lines)}</svg></figure>'
    )
