"""Draw the four curves of the CUDA Agent paper from metrics.jsonl, as one HTML file without
scripts.

The curves are reward, entropy, explained variance (centred, over all tokens and in the last
quartile) and the length-clipped ratio, by PPO iteration, for comparison with the paper's figures 4
and 5.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from cuagent.training.algorithms.metrics import Metrics, read_metrics
from cuagent.training.data.filters import gain
from cuagent.training.data.segments import Episode, RecordError

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 220, 52, 26
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568")
CURVES: tuple[tuple[str, dict[str, str]], ...] = (
    ("training reward", {"reward": "reward"}),
    ("actor entropy (nats)", {"entropy": "entropy"}),
    ("explained variance", {"ev": "all tokens", "ev_q4": "last quartile"}),
    ("length-clipped ratio", {"length_clipped": "cut"}),
)
"""Diagrams: title, and label of each metric by the metric's name. A report of several seeds shows
only the first metric of each diagram."""
Row = dict[str, Any]
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>PPO</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; color: #222; background: #fff }}
figure {{ display: inline-block; margin: 0 1.5em 1.5em 0 }}
td, th {{ padding: 0.2em 1em 0.2em 0; text-align: left }}
text {{ font: 11px sans-serif; fill: #555 }}
</style>
<h1>{head}</h1>
{above}
{figures}
"""


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a PPO run or of a demo; return its path. Raises
    RecordError if there are no metrics."""
    path = next(
        (p for p in (folder / "metrics.jsonl", folder / "ppo" / "metrics.jsonl") if p.exists()),
        None,
    )
    if path is None:
        raise RecordError(f"{folder}: no metrics.jsonl of PPO; run cuagent train ppo first")
    rows = iterations(path)
    figures = [
        svg_figure(title, {label: [m.get(name) for m in rows] for name, label in of.items()})
        for title, of in CURVES
    ]
    results = folder / "results.json"
    stages = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    head = f"PPO: {len(rows)} iterations"
    return write_page(folder, head, results_table(stages), figures)


def write_seeds_report(folder: Path, folders: Sequence[Path], summary: Sequence[str]) -> Path:
    """Write `folder/report.html` with the curves of several seeds (`folders`), below the lines of
    `summary`; return its path."""
    runs = {run.name: iterations(run / "ppo" / "metrics.jsonl") for run in folders}
    figures = [
        svg_figure(
            title, {run: [m.get(next(iter(of))) for m in rows] for run, rows in runs.items()}
        )
        for title, of in CURVES
    ]
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in summary)
    return write_page(folder, f"PPO: {len(runs)} seeds", f"<ul>{lines}</ul>", figures)


def write_pipeline_report(
    folder: Path, stages: dict[str, Metrics], episodes: Sequence[Episode]
) -> Path:
    """Write `report.html` of a pipeline; return its path.

    The report shows the held-out metrics of each stage (`stages`), tasks, speedups and kernels of
    the last evaluation (`episodes`), and PPO's four curves.
    """
    rows = iterations(folder / "ppo" / "metrics.jsonl")
    figures = [
        svg_figure(title, {label: [m.get(name) for m in rows] for name, label in of.items()})
        for title, of in CURVES
    ]
    above = results_table(stages) + tasks_table(episodes)
    return write_page(folder, f"PPO: {len(rows)} iterations", above, figures)


def tasks_table(episodes: Sequence[Episode]) -> str:
    """Return an HTML table with one row for each played task, with the files that the task's best
    episode wrote."""
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task_name, []).append(episode)
    if not by_task:
        return ""
    body = ""
    for name, played in sorted(by_task.items()):
        best = max(played, key=lambda e: (e.reward, gain(e)))
        correct = sum(e.reward > 0 for e in played) / len(played)
        speedup = f"{gain(best):.2f}x" if gain(best) else "not timed"
        files = "".join(
            f"<h4>{html.escape(path)}</h4><pre>{html.escape(text)}</pre>"
            for path, text in written_files(best).items()
        )
        body += (
            f"<tr><td>{html.escape(name)}</td><td>{len(played)}</td><td>{correct:.0%}</td>"
            f"<td>{best.reward:+g}</td><td>{speedup}</td>"
            f"<td><details><summary>kernel</summary>{files}</details></td></tr>"
        )
    names = ("task", "episodes", "correct", "best reward", "gain (lower limit)", "best episode")
    head = "".join(f"<th>{n}</th>" for n in names)
    return f"<table><tr>{head}</tr>{body}</table>"


def written_files(episode: Episode) -> dict[str, str]:
    """Return the files that the episode's `write` calls wrote, by path, with their last text.
    `edit` calls are ignored."""
    files: dict[str, str] = {}
    for call in episode.calls:
        if call.name == "write" and call.valid:
            arguments = json.loads(call.arguments, strict=False)
            files[str(arguments["path"])] = str(arguments["text"])
    return files


def iterations(path: Path) -> list[Row]:
    """Return the metrics of each PPO iteration in a metrics.jsonl; empty if there are none."""
    return [m for m in read_metrics(path) if m.get("stage") == "ppo"] if path.exists() else []


def write_page(folder: Path, head: str, above: str, figures: Sequence[str]) -> Path:
    out = folder / "report.html"
    out.write_text(PAGE.format(head=head, above=above, figures="".join(figures)), encoding="utf-8")
    return out


def results_table(stages: dict[str, dict[str, Any]]) -> str:
    """Return an HTML table of held-out metrics, with one row for each stage."""
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


def svg_figure(title: str, lines: Mapping[str, Sequence[float | None]]) -> str:
    """Return an HTML figure with a line diagram. `lines`: values of each line by its name; None is
    a gap."""
    points = [v for values in lines.values() for v in values if v is not None]
    low, high = min([0.0, *points]), max([0.0, *points])
    span = (high - low) or 1.0
    longest = max(map(len, lines.values()), default=0)
    step = (WIDTH - LEFT) / max(longest - 1, 1)

    def y(value: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - (value - low) / span) + 4

    drawn = []
    for (name, values), colour in zip(lines.items(), cycle(COLOURS), strict=False):
        path, pen = "", "M"
        for at, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            path += f"{pen}{LEFT + at * step:.1f} {y(value):.1f}"
            pen = "L"
        drawn.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8">'
            f"<title>{html.escape(name)}</title></path>"
        )
    axes = (
        f'<path d="M{LEFT} {y(high):.1f}V{y(low):.1f}H{WIDTH}" fill="none" stroke="#999"/>'
        f'<path d="M{LEFT} {y(0):.1f}H{WIDTH}" stroke="#ddd"/>'
        f'<text x="0" y="{y(high) + 8:.1f}">{high:.3g}</text>'
        f'<text x="0" y="{y(low):.1f}">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT}">0</text>'
        f'<text x="{WIDTH - 24}" y="{HEIGHT}">{max(longest - 1, 0)}</text>'
    )
    names = ", ".join(
        f'<span style="color:{colour}">{html.escape(name)}</span>'
        for name, colour in zip(lines, cycle(COLOURS), strict=False)
    )
    legend = f" ({names})" if len(lines) > 1 else ""
    return (
        f"<figure><figcaption>{html.escape(title)}{legend}</figcaption>"
        f'<svg width="{WIDTH}" height="{HEIGHT + 6}">{axes}{"".join(drawn)}</svg></figure>'
    )
