"""Show a run to a person: an append-only transcript and, on a terminal, a live status below it.

Printed lines never change; only the live status is redrawn in place, in one write, so nothing
flickers and scrolling back works. It is one line, or both columns of `ui.live` in a wide terminal.
Without a terminal there is no live status and no control character, nothing is cut, and the
figures are printed as a line for each step.
Invariant: every write goes through `_write`, under the lock that the ticking live line shares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from cuagent.events import (
    Event,
    Judged,
    LadderMeasured,
    Notice,
    Phase,
    RunEnded,
    RunStarted,
    Spent,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UserSaid,
)
from cuagent.timing import Standing
from cuagent.ui.attempts import AttemptTable, settings_lines
from cuagent.ui.code import LINES, written
from cuagent.ui.console import UNCUT, make_console
from cuagent.ui.flow import Flow
from cuagent.ui.keys import silent_keys
from cuagent.ui.live import panel_lines, two_sided
from cuagent.ui.markdown import Blocks, rendered
from cuagent.ui.region import Region
from cuagent.ui.status import Status
from cuagent.ui.summary import short_path, summary_lines
from cuagent.ui.table import why_lines
from cuagent.ui.text import clean, clip, duration, fold, glyphs_for, harmless, one_line, wrap

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder

TICK = 0.25
"""Seconds between two states of the live line."""
WIDEST = 120
"""Columns; longer lines are hard to read, and nothing here needs them."""
TOOL_LINES = {"bash": (4, 3), "compile": (6, 0), "profile": (12, 0)}
"""Numbers of first and last lines shown of a tool's output; other tools have `OTHER_LINES`."""
OTHER_LINES, ERROR_LINES = (3, 0), (4, 3)
USER_LINES = (6, 2)
"""First and last lines shown of the user's text: the output of `!!command` may be long."""
OUTPUT_LINES = 8
"""Lines of a running tool that a wide terminal shows below the transcript."""
PAUSES = ("interrupted", "answered")
"""Reasons to stop after which an interactive user continues; they need no summary."""
_NOTICE = {"info": "cyan", "warning": "yellow", "error": "red"}


class Terminal:
    """Shows the events of one run on `stream`; used as a context manager.

    A `recorded` run has no live status, and takes its times from the log. With `footer`, the caller
    shows the status (`footer_lines`) below the transcript, and only whole lines are written.
    """

    def __init__(self, stream: TextIO, *, recorded: bool = False, footer: bool = False) -> None:
        self.console = make_console(stream, footer=footer)
        self.glyphs = glyphs_for(stream.encoding)
        self.status = Status()
        self.attempt_table = AttemptTable()
        self._recorded = recorded
        self._footer = footer
        self._unwritten = ""
        self._live = (
            not recorded
            and not footer
            and self.console.is_terminal
            and not self.console.is_dumb_terminal
        )
        self._region = Region(self.console)
        self._echo = ExitStack()
        self._seconds_at_step = 0.0
        self._recent_output: list[str] = []
        """Newest output lines of the running tool."""
        self._phases: set[str] = set()
        self._blocks: Blocks | None = None
        """Text of the model in progress, if Markdown is rendered."""
        self._flow: Flow | None = None
        self._flow_style = ""
        self._run: RunStarted | None = None
        self._open: dict[str, ToolStarted] = {}
        self._last_call = ""
        self._summary = ""
        """The summary of the run shown last."""
        self._judged = self._ladder_shown = self._table_due = False
        self._tier = ""
        """The isolation tier shown last."""
        self._started = time.monotonic()
        self._paused_at: float | None = None
        self._tick = 0
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def __enter__(self) -> Terminal:
        if self._live:
            self._echo.enter_context(silent_keys())
            threading.Thread(target=self._keep_ticking, daemon=True, name="status").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        with self._lock:
            self._live = False
            self._write("")
        self._echo.close()

    @property
    def width(self) -> int:
        """Columns of the transcript; `UNCUT` in a file or a pipe."""
        width = self.console.width
        return width if width == UNCUT else min(width, WIDEST)

    @property
    def _uncut(self) -> bool:
        return self.console.width == UNCUT

    def __call__(self, event: Event) -> None:
        """Show one event; any thread may call."""
        with self._lock:
            self._show(event)

    def footer_lines(self, width: int) -> list[str]:
        """Return the lines below the transcript; the last one is the status."""
        with self._lock:
            tick = self._tick if self._paused_at is None else None
            self._tick += 1
            status = self.status.line(self._seconds(), width, self.glyphs, tick)
            if two_sided(self.attempt_table, width, self.console.height):
                doing = Status(activity=self.status.activity)  # the figures come last
                panel = self._panel(width, None, doing)
                return [*(harmless(line.plain) for line in panel), harmless(status)]
            unwritten = [clip(self._pending, width, self.glyphs.more)] if self._pending else []
            return [harmless(line) for line in (*unwritten, status)]

    def say(self, lines: Iterable[Text]) -> None:
        """Print lines that belong to no event."""
        self._print(lines)

    def recall(self, judged: Iterable[tuple[int, Judgement]], found: Ladder | None = None) -> None:
        """Take the ladder and the numbered attempts from an earlier session."""
        with self._lock:
            if found is not None:
                self.attempt_table.measure_ladder(found)
            for number, judgement in judged:
                self.attempt_table.add(number, judgement)
            self._improve()

    def pause(self, *, finished: bool = False) -> None:
        """Stop the clock until the next step and show that it is the user's turn.

        `finished`: only a message continues the run.
        """
        with self._lock:
            self._paused_at = self._paused_at or time.monotonic()
            self._recent_output = []
            does = "type what to try next" if finished else "Enter continues"
            self._set(activity=f"your turn: {does}, /help")

    def show_table(self) -> None:
        """All attempts so far."""
        self._print(self.attempt_table.all_lines(self.width, self.glyphs))

    def _show(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = event
                self._started = time.monotonic()  # earlier time was setup
                self._print(self._header(event))
            case Phase(text, passing):
                self._set(activity=one_line(text))
                # within a call only the live status shows it; else it is printed one time
                if not (passing or self._open or text in self._phases):
                    self._print([self._line(f"{self.glyphs.dot} {one_line(text)}", "dim")])
                self._phases.add(text)
            case TextDelta():
                self._stream(event)
            case StepStarted(step):
                self._resume_clock()
                self._set(step=step, activity="thinking")
                if not self._live and not self._footer:
                    figures = replace(self.status, activity="")
                    line = figures.line(self._seconds(), self.width, self.glyphs)
                    self._print([Text(), Text(line, "dim")])
            case ToolStarted():
                self._tool_started(event)
            case ToolOutput():
                self._tool_output(event)
            case ToolFinished():
                self._tool_finished(event)
            case LadderMeasured(found, True):
                self._show_ladder(found)
            case LadderMeasured(found):
                self.attempt_table.measure_ladder(found)
            case Judged():
                self._show_judged(event)
            case Spent():
                tokens = event.tokens_in + event.tokens_out
                self._set(step=event.step, tokens=tokens, cost=event.cost)
                self._seconds_at_step = event.seconds
                # the run's own clock counts earlier work, but not the setup
                self._started = (self._paused_at or time.monotonic()) - event.seconds
            case UserSaid(text):
                head, tail = (UNCUT, 0) if self._uncut else USER_LINES
                pieces = [f"> {line}" for line in fold(text, head, tail, self.glyphs.more)]
                self._print([Text(), *(Text(piece, "bold cyan") for piece in pieces)])
            case Notice(text, level):
                pieces = wrap(one_line(text), max(self.width - 2, 8))
                self._print([Text(f"! {piece}", _NOTICE[level]) for piece in pieces])
            case RunEnded(stop, _, summary) if self._footer and str(stop) in PAUSES:
                self._show_pause(str(stop), one_line(summary))
            case RunEnded():
                self._summary = one_line(event.summary)
                self._ended.set()
                numbers, table = self.attempt_table.numbers, self._final_table()
                lines = summary_lines(event, self._run, numbers, self.width, self.glyphs)
                self._print([Text(), *table, *([Text()] if table else []), *lines])

    def _final_table(self) -> list[Text]:
        """Return the table of all attempts; none if a single attempt stands above already."""
        fewest, self._table_due = 1 if self._table_due else 2, False
        return self.attempt_table.all_lines(self.width, self.glyphs, fewest)

    def _show_pause(self, stop: str, summary: str) -> None:
        """Show why the run stopped, and its summary if that changed since it was last shown."""
        if self._table_due:
            self._print([Text(), *self._final_table()])
        known, self._summary = summary == self._summary, summary
        said = stop if known else f"{stop}: {summary}"
        answer = known and stop == "answered"  # the answer stands above
        rows = [] if answer else [Text(), *(Text(row, "yellow") for row in wrap(said, self.width))]
        self._print(rows)

    def _header(self, run: RunStarted) -> list[Text]:
        text = one_line(f"{run.task} on {run.device}, by {run.model}")
        folder = wrap(one_line(f"run {short_path(run.folder)}"), self.width)
        return [self._line(text, "bold"), *(Text(piece, "dim") for piece in folder)]

    def _stream(self, event: TextDelta) -> None:
        if event.kind == "text" and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._say(clean(event.text))
            return
        if self._blocks is not None:
            self._print([])
        style = "dim" if event.kind == "reasoning" else ""
        if self._flow is not None and self._flow_style != style:
            self._print([])
        elif self._flow is None and (self._live or self._footer):  # else figures are printed here
            self._print([Text()])
        if self._flow is None:
            self._flow = Flow(self.width if self.console.is_terminal else None)
            self._flow_style = style
        # Tabs and bells of the model stay off the terminal; `Flow` makes the line ends.
        ready, self._unwritten = self._unwritten + self._flow.feed(clean(event.text)), ""
        if self._footer or self._two_sided:
            whole, newline, self._unwritten = ready.rpartition("\n")
            ready = whole + newline
        if ready:
            self._write(self._styled(ready))

    def _say(self, piece: str) -> None:
        """Show text of the model as Markdown, block by block."""
        if self._flow is not None:
            self._print([])
        blocks = self._blocks or Blocks()
        found = blocks.feed(piece)
        self._blocks = None  # else `_print` would end it
        for block in found:
            self._print([Text(), *rendered(block, self.console, self.width)])
        self._blocks = blocks

    @property
    def _pending(self) -> str:
        """The last line of the unfinished text."""
        return self._unwritten if self._blocks is None else self._blocks.open

    def _tool_started(self, event: ToolStarted) -> None:
        self._open[event.call_id] = event
        self._last_call = event.call_id
        self._judged = False
        self._ladder_shown = False
        self._recent_output = []
        self._set(activity=event.name)
        summary = one_line(event.summary)
        room = self.width - len(event.name) - 3 - len(self.glyphs.call)
        title = Text.assemble(
            (f"{self.glyphs.call} ", "cyan"),
            (event.name, "bold"),
            f"  {clip(summary, max(room, 8), self.glyphs.more)}" if summary else "",
        )
        self._print([title])

    def _tool_output(self, event: ToolOutput) -> None:
        lines = clean(event.text).strip().split("\n")
        started = self._open.get(event.call_id)
        if started is not None and lines[-1]:
            self._set(activity=f"{started.name}: {one_line(lines[-1])}")
            self._recent_output = [*self._recent_output, *map(one_line, lines)][-OUTPUT_LINES:]

    def _tool_finished(self, event: ToolFinished) -> None:
        started = self._open.pop(event.call_id, None)
        self._set(activity="")
        lines = []
        if started is not None and event.call_id != self._last_call:
            # another line has followed the title of this call
            summary = f"{started.name} {one_line(started.summary)}"
            lines.append(self._line(f"  {self.glyphs.result} {summary}", "dim"))
        self._last_call = ""
        lines += self._result(event, started)
        if event.seconds >= 1:
            lines.append(Text(f"  {duration(event.seconds)}", "dim"))
        self._print(lines)

    def _result(self, event: ToolFinished, started: ToolStarted | None) -> list[Text]:
        if self._judged:
            return []  # the judgement above is clearer than the text made for the model
        if started is not None and not event.is_error:
            most = UNCUT if self._uncut else LINES
            diff = str(event.data.get("diff", ""))
            code = written(
                started.name, started.arguments, self.width, self.glyphs, most, diff=diff
            )
            if code:
                return code
        if event.name == "baseline" and self.attempt_table.baselines and not event.is_error:
            return (
                []
                if self._ladder_shown
                else self.attempt_table.ladder_lines(self.width, self.glyphs)
            )
        if not event.output.strip():
            return []
        head, tail = ERROR_LINES if event.is_error else TOOL_LINES.get(event.name, OTHER_LINES)
        style = "red" if event.is_error else "dim"
        folded = fold(event.output, UNCUT if self._uncut else head, tail, self.glyphs.more)
        return [self._line(f"  {line}", style) for line in folded]

    def _show_judged(self, event: Judged) -> None:
        judgement: Judgement = event.judgement
        self._judged = True
        self.attempt_table.add(event.attempt, judgement, self._seconds())
        self._improve()
        self._table_due |= event.attempt in self.attempt_table.recorded
        lines = self.attempt_table.new_lines(event.attempt, self.width, self.glyphs)
        why = why_lines(judgement, self.width, self.glyphs, self._tier)
        if judgement.build.ok and not judgement.verdict.accepted:
            self._tier = judgement.verdict.tier
        self._print(lines + why)

    def _show_ladder(self, found: Ladder) -> None:
        self._ladder_shown = True
        self.attempt_table.measure_ladder(found)
        notes = [self._line(f"  {note}", "yellow") for note in found.notes]
        lines = self.attempt_table.ladder_lines(self.width, self.glyphs)
        self._print([*lines, *settings_lines(found, self.width), *notes])

    def _improve(self) -> None:
        """Show the best attempt by the latest timings: a timing of record replaces a lucky one."""
        if gain := self.attempt_table.best:
            self._set(best=gain.value, sure=gain.standing is not Standing.INCONCLUSIVE)

    def _line(self, text: str, style: str) -> Text:
        return Text(clip(text, self.width, self.glyphs.more), style)

    def _set(self, **changes: object) -> None:
        with self._lock:
            self.status = replace(self.status, **changes)  # type: ignore[arg-type]

    def _resume_clock(self) -> None:
        if self._paused_at is not None:
            self._started += time.monotonic() - self._paused_at
            self._paused_at = None

    def _seconds(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return self._seconds_at_step if self._recorded else now - self._started

    def _print(self, lines: Iterable[Text]) -> None:
        """End streamed text, if any, and add whole lines."""
        with self._lock:
            text = ""
            if self._blocks is not None:
                blocks, self._blocks = self._blocks.end(), None
                said = [[Text(), *rendered(b, self.console, self.width)] for b in blocks]
                lines = [*(line for part in said for line in part), *lines]
            if self._flow is not None:
                text += self._styled(self._unwritten + self._flow.end())
                self._flow, self._unwritten = None, ""
            with self.console.capture() as capture:
                for line in lines:
                    self.console.print(line, soft_wrap=True)
            self._write(text + capture.get())

    def _styled(self, text: str) -> str:
        with self.console.capture() as capture:
            self.console.print(Text(text, self._flow_style), end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        """Append `text` to the transcript and redraw the live status. One write, one flush."""
        with self._lock:
            erase = self._region.erase()
            live = self._region.draw(self._live_lines()) if self._is_shown else ""
            if erase or text or live:
                self.console.file.write(erase + text + live)
                self.console.file.flush()

    @property
    def _two_sided(self) -> bool:
        return self._live and two_sided(
            self.attempt_table, self.console.width - 1, self.console.height
        )

    @property
    def _is_shown(self) -> bool:
        """True if the live status shows; one line hides while text streams, two columns stay."""
        return self._live and (self._flow is None or self._two_sided)

    def _live_lines(self) -> list[Text]:
        # one column stays free: a full last line would wrap and could not be redrawn in place
        if self._two_sided:
            return self._panel(self.console.width - 1, self._tick, self.status)
        pending = one_line(self._pending)
        status = replace(self.status, activity=pending) if pending else self.status
        line = status.line(self._seconds(), self.width - 1, self.glyphs, self._tick)
        return [Text(line, "dim")]

    def _panel(self, width: int, tick: int | None, status: Status) -> list[Text]:
        recent_output = [self._pending] if self._pending else self._recent_output
        rows, seconds = self.console.height, self._seconds()
        return panel_lines(
            status, recent_output, self.attempt_table, seconds, width, rows, self.glyphs, tick
        )

    def _keep_ticking(self) -> None:
        while not self._ended.wait(TICK):
            with self._lock:
                if self._is_shown:
                    self._tick += 1
                    self.console.file.write(self._region.redraw(self._live_lines()))
                    self.console.file.flush()
