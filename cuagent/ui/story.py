"""Format a recorded run as text: the result first, then each step.

It is more complete than the live view: whole commands and files, verdicts with all figures, and the
diff of each attempt. Pure functions from records to lines; `ui.pager` shows the lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from time import gmtime, strftime

from rich.console import Console
from rich.text import Text

from cuagent.events import (
    Event,
    Judged,
    LadderMeasured,
    Notice,
    RunEnded,
    Spent,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    UserSaid,
)
from cuagent.record import RunFolder, ladder_of
from cuagent.ui.attempts import AttemptTable, ladder_rows, ladder_table, settings_lines
from cuagent.ui.code import written
from cuagent.ui.console import UNCUT
from cuagent.ui.markdown import Blocks, rendered
from cuagent.ui.recorded import Records, best_of, events_of
from cuagent.ui.summary import summary_lines
from cuagent.ui.table import judgement_lines
from cuagent.ui.text import UNICODE, Glyphs, clean, clock, count, fold, money, one_line, wrap

HEAD, TAIL = 60, 20
"""Numbers of first and last lines shown of a tool's output."""
WIDEST = 120
"""Largest width in characters of a horizontal rule."""
MARKDOWN = 50_000
"""Largest number of characters of a message that is rendered; a longer one is shown as text."""
CODE = 400
"""Largest number of lines shown of a file that was written."""
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def story(
    folder: RunFolder,
    records: Records,
    width: int,
    glyphs: Glyphs = UNICODE,
    console: Console | None = None,
) -> Iterator[Text]:
    """Yield the lines on a run for `width` columns; with `UNCUT` no output is shortened.

    `console`: the terminal for which the model's Markdown is rendered; None keeps it as text.
    """
    session = records[0]
    task = session["task"]
    when = strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(session["time"]))
    title = f"{task['name']} on {task['device']}, by {session['model']}, {when}"
    yield Text(one_line(title), "bold")
    yield from _result(folder, records, width, glyphs)
    texts = {r["n"]: dict(r["files"]) for r in records if r["type"] == "attempt"}
    seen: set[int] = set()
    judged, tier = False, ""
    for event in events_of(folder, records):
        match event:
            case StepStarted(step):
                yield Text()
                yield Text(f"{glyphs.rule * 2} step {step} ", "bold cyan").append(
                    glyphs.rule * max(min(width, WIDEST) - len(f"{step}") - 9, 0), "dim"
                )
            case ToolStarted():
                judged = False
                yield from _call(event, width, glyphs)
            case Judged(number, judgement):
                yield Text(f"  attempt {number}", "bold")
                for line in judgement_lines(judgement, width - 2, glyphs, tier):
                    yield Text.assemble("  ", line)
                tier = judgement.verdict.tier if judgement.build.ok else tier
                if number not in seen:
                    yield from _change(texts, number, width)
                seen.add(number)
                judged = True
            case ToolFinished() if judged:
                judged = False  # the judgement above is clearer than the text for the model
            case RunEnded():
                yield Text()
                yield Text(one_line(f"ended: {event.stop}: {event.summary}"), "bold")
            case TextDelta(text, "text") if console is not None and len(text) <= MARKDOWN:
                yield from _said(clean(text), width, console)
            case _:
                yield from _other(event, width, glyphs)


def _said(text: str, width: int, console: Console) -> Iterator[Text]:
    """Yield the model's Markdown as on the live screen, block by block."""
    blocks = Blocks()
    for number, block in enumerate([*blocks.feed(text), *blocks.end()]):
        yield from ([Text()] if number else [])
        yield from rendered(block, console, min(width, WIDEST))


def _result(folder: RunFolder, records: Records, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """Yield the lines of the table of attempts and of the summary of a run."""
    attempt_table, found = AttemptTable(), ladder_of(records)
    if found is not None:
        attempt_table.measure_ladder(found)
    for event in events_of(folder, records):
        if isinstance(event, Judged):
            attempt_table.add(event.attempt, event.judgement)
    if attempt_table.attempts:
        yield from (Text(), *attempt_table.all_lines(width, glyphs))
    ends = [e for e in events_of(folder, records) if isinstance(e, RunEnded)]
    unfinished = RunEnded("unfinished", best_of(records), "the run has not ended", found)
    ended = ends[-1] if ends else unfinished
    yield Text()
    yield from summary_lines(ended, None, attempt_table.numbers, width, glyphs)


def _call(event: ToolStarted, width: int, glyphs: Glyphs) -> Iterator[Text]:
    yield Text.assemble((f"{glyphs.call} ", "cyan"), (event.name, "bold"))
    code = written(event.name, event.arguments, width, glyphs, _most(CODE, width))
    if code:
        yield Text(f"  {one_line(event.summary)}", "bold")
        yield from code
    else:
        for line in clean(_shown(event)).split("\n"):
            if line:
                yield Text(f"  {line}")


def _most(lines: int, width: int) -> int:
    """Return the limit `lines` on a terminal, and no limit (`UNCUT`) for a file or a pipe."""
    return UNCUT if width == UNCUT else lines


def _shown(event: ToolStarted) -> str:
    """Return the whole command of a shell call; for other calls their arguments."""
    import json

    try:
        arguments = json.loads(event.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return event.arguments
    if not isinstance(arguments, dict):
        return event.arguments
    if set(arguments) == {"command"}:
        return str(arguments["command"])
    return "\n".join(f"{key}: {value}" for key, value in arguments.items())


def _change(texts: Mapping[int, Mapping[str, str]], number: int, width: int) -> Iterator[Text]:
    """Yield the diff from the previous attempt to attempt `number`; nothing for the first one."""
    before, after = texts.get(number - 1), texts.get(number)
    if before is None or after is None:
        return
    for name in sorted(before.keys() | after.keys()):
        lines = unified_diff(
            before.get(name, "").splitlines(),
            after.get(name, "").splitlines(),
            f"attempt {number - 1}/{name}",
            f"attempt {number}/{name}",
            lineterm="",
        )
        for line in lines:
            style = "bold" if line[:3] in ("+++", "---") else _DIFF.get(line[:1], "dim")
            yield Text(f"  {clean(line)}", style)


def _other(event: Event, width: int, glyphs: Glyphs) -> Iterator[Text]:
    match event:
        case TextDelta(text, kind):
            for line in clean(text).rstrip().split("\n"):
                for piece in wrap(line, width):
                    yield Text(piece, "dim" if kind == "reasoning" else "")
        case UserSaid(text):
            yield Text()
            for line in clean(text).strip().split("\n"):
                yield Text(f"> {line}", "bold cyan")
        case LadderMeasured(found, True):
            yield Text()
            yield Text("the ladder", "bold")
            yield from ladder_table(ladder_rows(found), width, glyphs)
            yield from settings_lines(found, width)
        case ToolFinished():
            if event.output.strip():
                style = "red" if event.is_error else "dim"
                for line in fold(event.output, _most(HEAD, width), TAIL, glyphs.more):
                    yield Text(f"  {line}", style)
        case Notice(text):
            for piece in wrap(clean(text), max(width - 2, 8)):
                yield Text(f"! {piece}", "yellow")
        case Spent() if event.tokens_in:
            tokens = f"{count(event.tokens_in)} tokens in, {count(event.tokens_out)} out"
            cost = f", {money(event.cost)}" if event.cost else ""
            yield Text(f"{clock(event.seconds)}, {tokens}{cost} so far", "dim")
