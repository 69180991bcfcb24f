"""Write one run as an HTML page that needs no network: charts, kernels, precision, installation.

The charts use `bench/svg.py`. Every text of the log is escaped, because a log may come from
elsewhere. The page's content security policy forbids scripts and network requests.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuagent.arms import EAGER
from cuagent.bench.svg import PALETTE
from cuagent.record import attempt_of, end_record, judgement_of, ladder_of
from cuagent.record.revive import task_of
from cuagent.task.step import forward_task
from cuagent.timing import interval_title
from cuagent.ui.recorded import best_of
from cuagent.ui.report_charts import attempts_chart, ladder_chart, parts_chart, roofline_chart
from cuagent.verdict import on_inputs

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Gain, Ladder
    from cuagent.task import Task

Records = list[dict[str, Any]]

STYLE = (
    PALETTE
    + """
body { margin: 0 auto; padding: 1.5rem; max-width: 64rem; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
figure { margin: 0; } figcaption { color: var(--dim); font-size: .9rem; }
svg .bad { fill: var(--bad); } svg .good { fill: var(--good); }
svg .value { fill: var(--text); }
.scroll { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; padding: .7rem;
  font-size: 13px; line-height: 1.4; } summary { cursor: pointer; }
"""
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report(run: str, records: Records, script: Mapping[str, Any] | None = None) -> str:
    """Return the HTML page of a run.

    `script` is the content of the run's `script.json`, for a captured module only.
    """
    task, ladder, best = task_of(records), ladder_of(records), best_of(records)
    attempts = {r["digest"]: attempt_of(r["files"]) for r in records if r["type"] == "attempt"}
    captured = _captured(script)
    kind = forward_task(task).entry
    title = f"{kind} of {task.path.name}"
    if captured is not None:
        kind = captured["kind"]
        title = f"{kind} modules, as {captured['module']} of the script"
    parts = [
        f"<h1>{_text(title)}</h1>",
        _summary(run, records, task, ladder, best),
        "<h2>Speed</h2>",
        '<div class="charts">',
        _figure(
            ladder_chart(ladder, best),
            "The ladder: time of a call without a kernel, and with the best kernel",
        ),
        _figure(parts_chart(best), "Before and after: what was free, and what the kernel added"),
        _figure(roofline_chart(ladder, best), "Roofline: how far each time is from the floor"),
        _figure(
            attempts_chart(_points(records)), "Attempts over time; rejected ones at the bottom"
        ),
        "</div>",
        _speed(best),
        *_of_script(script),
        "<h2>Precision</h2>",
        _precision(task, ladder, best),
        "<h2>Kernels</h2>",
        _kernels(attempts.get(best.attempt) if best is not None else None),
        "<h2>Install</h2>",
        _install(run, task, kind),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{_text(run)}</title>'
        f"<style>{STYLE}{_highlight_style()}</style></head><body>\n" + "\n".join(parts) + "\n"
        "</body></html>\n"
    )


def _summary(
    run: str, records: Records, task: Task, ladder: Ladder | None, best: Judgement | None
) -> str:
    end: Mapping[str, Any] = end_record(records) or {}
    if best is None:
        result = '<p class="bad">No attempt was accepted.</p>'
    elif best.gain is not None:
        result = _gain_line(best.gain)
    else:
        result = "<p>An attempt was accepted; it was not timed against the best option.</p>"
    device = ladder.device if ladder is not None else task.device
    timed = best.timing if best is not None else None
    versions = (timed.versions if timed else None) or (ladder.versions if ladder else {})
    facts = {
        "run": run,
        "device": device,
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
        "stopped": str(end.get("stop", "unfinished")),
        "task": task.digest[:16],
    }
    lines = "".join(f'<div class="dim">{k}: {_text(v)}</div>' for k, v in facts.items() if v)
    return result + lines


def _gain_line(gain: Gain) -> str:
    """Return a paragraph with the speedup; it says "faster" only if the interval excludes 1."""
    whole = gain.end_to_end
    if whole.low > 1:
        style, claim = "good", f"{whole.value:.2f} times as fast as eager"
    elif whole.high < 1:
        style, claim = "bad", f"Slower than eager: {whole.value:.2f} times as fast"
    else:
        style, claim = "dim", f"Could not tell if it is faster than eager: {whole.value:.2f}"
    if gain.kernel.low > 1:
        added = "the kernel adds"
    elif gain.kernel.high < 1:
        added = "the kernel is slower than that:"
    else:
        added = "if the kernel adds to that could not be told:"
    return (
        f'<p class="{style}">{claim} [{whole.low:.2f}, {whole.high:.2f}]: {gain.free.value:.2f} is '
        f"free ({_text(gain.rung)}), and {added} {gain.kernel.value:.2f} "
        f"[{gain.kernel.low:.2f}, {gain.kernel.high:.2f}].</p>"
    )


def _captured(script: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    found = script.get("captured") if script is not None else None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(k), str) for k in ("kind", "module")
    ):
        return None
    return found


def _of_script(script: Mapping[str, Any] | None) -> list[str]:
    """Return the section on the user's script: shapes, share, measured time; [] if the module was
    not captured."""
    if _captured(script) is None or script is None:
        return []
    rows, share, whole = "", script.get("share"), script.get("script")
    for shape in script.get("shapes") or ():
        used = f"{shape['speedup']:.2f}x [{shape['low']:.2f}, {shape['high']:.2f}]"
        what = used if shape["covered"] else f"your module ({shape['why']})"
        name = shape["task"] or "other calls"
        rows += (
            f"<tr><td>{_text(name)}</td><td>{_text(shape['calls'])}</td><td>{_text(what)}</td></tr>"
        )
    lines = []
    if isinstance(share, float) and isinstance(whole, float):
        faster = any(shape["low"] > 1 for shape in script.get("shapes") or ())
        gain = f"with these results the steps should become {whole:.2f}x as fast"
        gain = gain if faster else "no shape is surely faster, so no gain is shown"
        lines.append(f"The module took {share:.0%} of the script's steps; {gain}.")
    timed = script.get("timed")
    if isinstance(timed, dict):
        before, after = (min(timed[f"{name}_s"]) for name in ("before", "after"))
        lines.append(
            f"Measured: the steps took {before:.3g} s without the kernel and {after:.3g} s with "
            f"it; the kernel ran in {timed['swapped']} of {timed['calls']} calls."
        )
    return [
        "<h2>In your script</h2>",
        '<div class="scroll"><table><tr><th>shape</th><th>calls</th><th>over eager</th></tr>'
        f"{rows}</table></div>",
        *(f"<p>{_text(text)}</p>" for text in lines),
    ]


def _points(records: Records) -> list[tuple[float, float | None, str]]:
    """Return (seconds since the start, speedup over eager, name) for each judgement.

    The speedup is None for a rejected or untimed attempt.
    """
    start = float(records[0].get("time", 0.0)) if records else 0.0
    numbers = {r["digest"]: r["n"] for r in records if r["type"] == "attempt"}
    points = []
    for record in records:
        if record["type"] == "judgement":
            found = judgement_of(record)
            ratio = found.timing.ratios.get(EAGER) if found.timing else None
            value = ratio.value if ratio is not None and found.verdict.accepted else None
            why = "" if found.verdict.accepted else f": {found.verdict.reason}"
            name = f"attempt {numbers.get(found.attempt, '?')}, {record.get('effort', '')}{why}"
            points.append((float(record.get("time", start)) - start, value, name))
    return points


def _speed(best: Judgement | None) -> str:
    if best is None or best.timing is None:
        return '<p class="dim">Nothing was timed.</p>'
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{ratio.value:.3f}x</td>"
        f"<td>{ratio.low:.3f} to {ratio.high:.3f}</td><td>{ratio.standing}</td></tr>"
        for name, ratio in best.timing.ratios.items()
    )
    notes = "".join(f'<p class="dim">{_text(note)}</p>' for note in best.timing.remarks)
    interval = interval_title(best.timing.effort)
    return (
        f'<div class="scroll"><table><tr><th>baseline</th><th>speedup</th><th>{interval}</th>'
        f"<th>standing</th></tr>{rows}</table></div>{notes}"
    )


def _precision(task: Task, ladder: Ladder | None, best: Judgement | None) -> str:
    lines = [f"The task admits: {task.precision}."]
    if best is not None:
        verdict = best.verdict
        lines.append(f"Verdict: {verdict.reason}. {verdict.detail}".rstrip())
        if best.contract:
            lines.append(f"{best.contract[0].upper()}{best.contract[1:]}.")
        for rule, result in (("lax", verdict.lax), ("strict", verdict.strict)):
            if result is not None:
                word = "passed" if result.passed else "failed"
                worst = f"largest error {result.worst:.3g} times its bound"
                lines.append(f"The {rule} rule: {word}, {worst}.")
        if verdict.draws:
            largest = max(verdict.draws, key=lambda draw: draw.max_error)
            lines.append(
                f"Largest absolute error against fp64 in {len(verdict.draws)} secret draws: "
                f"{largest.max_error:.3g} ({on_inputs(largest.kind)})."
            )
    elif ladder is not None and ladder.contract:
        lines.append(f"{ladder.contract[0].upper()}{ladder.contract[1:]}.")
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


def _kernels(attempt: Attempt | None) -> str:
    if attempt is None:
        return '<p class="dim">There is no kernel.</p>'
    parts = []
    for name, text in attempt.files:
        opened = " open" if name.startswith("kernels/") and not name.endswith(".h") else ""
        parts.append(
            f"<details{opened}><summary>{_text(name)}</summary>{_highlighted(name, text)}</details>"
        )
    return "".join(parts)


def _highlighted(name: str, text: str) -> str:
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CppLexer, PythonLexer
    except ImportError:  # without it the text is shown plain
        return f"<pre>{_text(text)}</pre>"
    lexer = PythonLexer() if name.endswith(".py") else CppLexer()
    return str(highlight(text, lexer, HtmlFormatter(cssclass="code")))


def _highlight_style() -> str:
    try:
        from pygments.formatters import HtmlFormatter
    except ImportError:
        return ""
    light = HtmlFormatter(style="default", cssclass="code").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark", cssclass="code").get_style_defs(".code")
    plain = ".code { background: none !important; }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{plain}"


def _install(run: str, task: Task, kind: str) -> str:
    from cuagent.package.folder import package_name

    name = package_name(forward_task(task))
    lines = [
        f"cuagent export {run} --out {name}",
        f"pip install ./{name}",
        "",
        f"# in Python: the modules of class {kind} in your model run the kernel",
        f"import {name}",
        f"{name}.optimize_(model)     # undo: {name}.restore_(model)",
        "",
        f"python -m {name}.check --time   # compare and time it on your machine",
    ]
    return f"<pre>{_text(chr(10).join(lines))}</pre>"


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(text: object) -> str:
    return html.escape(str(text))
