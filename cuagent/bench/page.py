"""Write the results as one HTML page with tables, charts, and a sortable list of problems. The page
needs no network.

The charts are SVG from `charts.py`; the page's script only sorts and filters the list. Every text
of a problem is escaped, because titles and reasons come from foreign files.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cuagent.bench.charts import family_chart, histogram, roofline_scatter
from cuagent.bench.columns import (
    OVERALL,
    RULES,
    Mean,
    family_of,
    group_of,
    rows_by,
    statuses,
    time_of,
)
from cuagent.bench.record_form import RESULTS
from cuagent.bench.results import Record
from cuagent.bench.svg import PALETTE
from cuagent.record.contained_files import write_file

STYLE = (
    PALETTE
    + """
body { margin: 0 auto; padding: 1.5rem; max-width: 78rem; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.dim { color: var(--dim); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { position: sticky; top: 0; background: var(--page); font-weight: 600; white-space: normal; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--one); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.text { text-align: left; } .long { white-space: normal; min-width: 16rem; }
.kernel, .free { color: var(--good); } .failed { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { color: var(--dim); font-size: .9rem; }
input { font: inherit; padding: .3rem .5rem; border: 1px solid var(--line); border-radius: 4px;
  background: var(--page); color: var(--text); }
"""
)
SCRIPT = """
const table = document.getElementById("problems"), body = table.tBodies[0];
for (const button of table.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentElement, column = head.cellIndex;
  const up = head.getAttribute("aria-sort") === "descending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
  const empty = row => key(row) === "";
  const order = (a, b) => {
    if (empty(a) !== empty(b)) return empty(a) ? 1 : -1;
    const [x, y] = [key(a), key(b)], numbers = [Number(x), Number(y)];
    const found = numbers.some(Number.isNaN) ? x.localeCompare(y, undefined, {numeric: true})
      : numbers[0] - numbers[1];
    return up ? found : -found;
  };
  body.append(...[...body.rows].sort(order));
};
document.getElementById("filter").oninput = event => {
  const wanted = event.target.value.toLowerCase();
  for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
};
"""
NAMES = {"eager": "eager", "compile": "torch.compile", "best_rung": "best rung"}
HEADS = (
    "problem", "title", "status", "family", "x over eager", "x over torch.compile",
    "x over best rung", "best rung", "result (us)", "roofline", "parts of the gain", "attempts",
    "seconds", "certificates", "reason",
)  # fmt: skip
TEXT_HEADS = frozenset(HEADS[i] for i in (0, 1, 2, 3, 7, 10, 13, 14))


def write_page(records: Sequence[Record], path: Path) -> None:
    """Write the results page to `path` atomically: a reader never sees a partial file."""
    write_file(path.parent, path.name, page(records).encode("utf-8"))


def page(records: Sequence[Record]) -> str:
    """Return the results page of the records as HTML."""
    found = ", ".join(f"{number} {name}" for name, number in statuses(records).items())
    count = f"{len(records)} problem{'s' * (len(records) != 1)}"
    parts = [
        "<h1>cuagent bench</h1>",
        f"<p>{count}: {_text(found)}</p>{_about(records)}",
        "<h2>Results by rule</h2>",
        _table1(records),
        '<p class="dim">lax: the best attempt, 5 inputs, atol = rtol = 1e-2, ratio of medians. '
        "strict: the result (a kernel, or the best free option, except under kernels-only), by the "
        "rule of cuagent; faster means that the lower limit of the interval lies above the "
        "threshold. clean: strict, without degenerate and algebra-only problems. Speedups are "
        "geometric means over the problems that pass, with 95 % bootstrap intervals.</p>",
        '<div class="charts">',
        _figure(histogram(records), "Distribution of speedups, strict"),
        _figure(roofline_scatter(records), "Time of the result against the floor of the task"),
        _figure(family_chart(records), "Geometric mean by family, strict, with intervals"),
        "</div>",
        "<h2>By operator family, strict</h2>",
        _families(records),
        "<h2>Problems</h2>",
        '<p><input id="filter" placeholder="filter" aria-label="filter the problems"></p>',
        _problems(records),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>cuagent bench</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + f"\n<script>{SCRIPT}</script>"
        "</body></html>\n"
    )


def _about(records: Sequence[Record]) -> str:
    """Return device, versions, settings and dates of the records as an HTML fragment."""
    settings = {f"{k} {v}" for r in records for k, v in r["settings"].items()}
    versions = {f"{k} {v}" for r in records for k, v in (r.get("versions") or {}).items()}
    lines = {
        "device": {str(r["device"]) for r in records if r.get("device")},
        "cuagent": {str(r["cuagent"]) for r in records},
        "versions": versions,
        "settings": settings,
        "dates": {str(r["time"])[:10] for r in records},
    }
    return "".join(
        f'<div class="dim">{name}: {_text(", ".join(sorted(values)))}</div>'
        for name, values in lines.items()
        if values
    )


def _table1(records: Sequence[Record]) -> str:
    rows = rows_by(records, group_of)
    heads = ["subset", "rule", "problems", "pass"]
    heads += [f"faster vs {name}" for name in NAMES.values()]
    heads += [f"x over {name}" for name in NAMES.values()]
    lines = []
    for group in dict.fromkeys(row.group for row in rows):
        for rule in RULES:
            chosen = [row for row in rows if (row.group, row.rule) == (group, rule)]
            cells = [group, rule, str(chosen[0].problems), _percent(chosen[0].fast[0.0])]
            cells += [_percent(row.fast[1.0]) for row in chosen]
            cells += [_mean(row.speedup) for row in chosen]
            lines.append(_row(cells, text=2))
    fast = ["rule", "against", "fast_0", "fast_1", "fast_1.05", "fast_2", "geometric mean"]
    shares = [
        _row([r.rule, NAMES[r.baseline], *map(_percent, r.fast.values()), _mean(r.speedup)], text=2)
        for r in rows
        if r.group == OVERALL
    ]
    return _table(heads, lines, text=2) + "<p></p>" + _table(fast, shares, text=2)


def _families(records: Sequence[Record]) -> str:
    rows = [row for row in rows_by(records, family_of, ("strict",)) if row.group != OVERALL]
    lines = []
    for group in sorted({row.group for row in rows}):
        chosen = [row for row in rows if row.group == group]
        cells = [group, str(chosen[0].problems), _percent(chosen[0].fast[0.0])]
        lines.append(_row([*cells, *(_mean(row.speedup) for row in chosen)], text=1))
    heads = ["family", "problems", "pass", *(f"x over {name}" for name in NAMES.values())]
    return _table(heads, lines, text=1)


def _problems(records: Sequence[Record]) -> str:
    heads = "".join(f'<th{_class(head)} scope="col"><button>{head}</button></th>' for head in HEADS)
    lines = "\n".join(_problem(record) for record in records)
    return (
        f'<div class="scroll"><table id="problems"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _problem(record: Record) -> str:
    ratios = record.get("ratios") or {}
    given = record["status"] in RESULTS
    result = time_of(record) or {}
    share = record.get("roofline_share")
    certificates = record.get("certification", {}).get("certificates", [])
    listed = "; ".join(f"{c['kind']} ({c['detail']})" for c in certificates)
    parts = ", ".join(
        f"{name.replace('_', ' ')} {value:.2f}x"
        for name, value in (record.get("parts") or {}).items()
    )
    seconds = record.get("seconds", {}).get("total_s")
    cells = [
        _cell(record["problem"], css="text"),
        _cell(record["title"], css="text"),
        _cell(record["status"], css=f"text {record['status'].partition(' ')[0]}"),
        _cell(family_of(record), css="text"),
        *(_ratio(ratios.get(name) if given else None) for name in NAMES),
        _cell(record.get("best_rung") or "", css="text"),
        _number(result.get("median_s"), "{:.1f}", 1e6),
        _number(share, "{:.0%}"),
        _cell(parts, css="text"),
        _number(record.get("attempts"), "{:.0f}"),
        _number(seconds, "{:.0f}"),
        _cell(listed, css="text long"),
        _cell(record["reason"], css="text long"),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "<td></td>"
    limits = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
    return f'<td data-key="{ratio["value"]}">{ratio["value"]:.2f} ({limits})</td>'


def _number(value: Any, form: str, scale: float = 1.0) -> str:
    if not isinstance(value, int | float):
        return "<td></td>"
    return f'<td data-key="{value}">{form.format(value * scale)}</td>'


def _cell(text: str, css: str = "") -> str:
    return f'<td class="{_text(css)}">{_text(text)}</td>'


def _class(head: str) -> str:
    return ' class="text"' if head in TEXT_HEADS else ""


def _table(heads: Sequence[str], rows: Iterable[str], text: int) -> str:
    names = "".join(
        f'<th{" class=text" if n < text else ""} scope="col">{_text(head)}</th>'
        for n, head in enumerate(heads)
    )
    return f'<div class="scroll"><table><tr>{names}</tr>{"".join(rows)}</table></div>'


def _row(cells: Sequence[str], text: int) -> str:
    listed = (
        f"<td{' class=text' if n < text else ''}>{_text(cell)}</td>" for n, cell in enumerate(cells)
    )
    return f"<tr>{''.join(listed)}</tr>"


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{caption}</figcaption></figure>"


def _mean(mean: Mean | None) -> str:
    if mean is None:
        return "-"
    limits = "" if mean.low is None else f" ({mean.low:.2f} to {mean.high:.2f})"
    return f"{mean.value:.2f}{limits}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _text(text: str) -> str:
    return html.escape(str(text))
