"""Show a run to a person: a transcript of its events and, on a terminal, a live status below it.

The live status is one line, or the two columns of `ui.live` in a wide terminal. Without a terminal
there is no live status: no line is cut, and the figures are printed as a line for each step.
`transcript.py` writes and redraws.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from cuagent.ui.code import LINES, LOG_LINES, written
from cuagent.ui.console import UNCUT
from cuagent.ui.live import panel_lines, two_sided
from cuagent.ui.status import Status
from cuagent.ui.summary import short_path, summary_lines
from cuagent.ui.table import why_lines
from cuagent.ui.text import (
    clean,
    clip,
    duration,
    fold,
    glyphs_for,
    harmless,
    indented,
    one_line,
    wrap,
)
from cuagent.ui.transcript import Transcript

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder

TOOL_LINES = {"bash": (4, 3), "compile": (6, 0), "profile": (12, 0)}
"""Numbers of first and last lines shown of a tool's output; `OTHER_LINES` for all other tools."""
OTHER_LINES, ERROR_LINES = (3, 0), (4, 3)
USER_LINES = (6, 2)
"""Numbers of first and last lines shown of the user's text; the output of `!!command` may be
long."""
EXCERPTS = 4
"""Number of files written in one step of which an excerpt is shown; of others only the length."""
OUTPUT_LINES = 8
"""Number of a running tool's last output lines that a wide terminal shows below the transcript."""
PAUSES = ("interrupted", "answered")
"""Reasons for a stop after which an interactive run usually continues, so that no full summary is
shown."""
_NOTICE = {"info": "cyan", "warning": "yellow", "error": "red"}


class Terminal:
    """Context manager that shows the events of one run on `stream`.

    With `recorded` there is no live status, and times come from the log. With `footer` the caller
    shows the status (`footer_lines`) below the transcript, and only whole lines are written.
    """

    def __init__(self, stream: TextIO, *, recorded: bool = False, footer: bool = False) -> None:
        self._transcript = Transcript(
            stream, self._live_lines, self._is_two_sided, recorded=recorded, footer=footer
        )
        self.console = self._transcript.console
        self.glyphs = glyphs_for(stream.encoding)
        self.status = Status()
        self.attempt_table = AttemptTable()
        self._recorded = recorded
        self._footer = footer
        self._seconds_at_step = 0.0
        self._recent_output: list[str] = []
        """Newest output lines of the running tool."""
        self._phases: set[str] = set()
        self._run: RunStarted | None = None
        self._open: dict[str, ToolStarted] = {}
        self._last_call = ""
        self._excerpts = 0
        """Number of files that were written in this step."""
        self._summary = ""
        """The summary that was shown last."""
        self._judged = self._ladder_shown = self._table_due = self._interrupted = False
        self._tier = ""
        """The isolation tier that was shown last."""
        self._started = time.monotonic()
        self._paused_at: float | None = None

    def __enter__(self) -> Terminal:
        self._transcript.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transcript.close()

    @property
    def width(self) -> int:
        """Width of the transcript in characters; `UNCUT` in a file or a pipe."""
        return self._transcript.width

    def __call__(self, event: Event) -> None:
        """Show one event. Any thread may call this."""
        with self._transcript.lock:
            self._show(event)

    def footer_lines(self, width: int) -> list[str]:
        """Return the lines below the transcript, `width` characters wide; the last one is the
        status."""
        with self._transcript.lock:
            tick = self._transcript.tick if self._paused_at is None else None
            self._transcript.tick += 1
            status = self.status.line(self._seconds(), width, self.glyphs, tick)
            if two_sided(self.attempt_table, width, self.console.height):
                doing = Status(activity=self.status.activity)  # the figures come last
                panel = self._panel(width, None, doing)
                return [*(harmless(line.plain) for line in panel), harmless(status)]
            pending = self._transcript.pending
            unwritten = [clip(pending, width, self.glyphs.more)] if pending else []
            return [harmless(line) for line in (*unwritten, status)]

    def say(self, lines: Iterable[Text]) -> None:
        """Print lines in the transcript."""
        self._transcript.print(lines)

    def recall(self, judged: Iterable[tuple[int, Judgement]], found: Ladder | None = None) -> None:
        """Add the ladder and (number, judgement) pairs of an earlier session to the table, without
        output."""
        with self._transcript.lock:
            if found is not None:
                self.attempt_table.measure_ladder(found)
            for number, judgement in judged:
                self.attempt_table.add(number, judgement)
            self._improve()

    def pause(self, *, finished: bool = False, queued: bool = False) -> None:
        """Stop the clock until the next step, and show that the run waits for the user.

        `finished`: the run continues only if the user sends a message. `queued`: the user has
        typed a message that the model has not read.
        """
        with self._transcript.lock:
            self._paused_at = self._paused_at or time.monotonic()
            self._recent_output = []
            does = "type what to try next" if finished else "Enter continues"
            does = "Enter sends the queued message" if queued else does
            self._set(activity=f"your turn: {does}, /help")

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Stop the clock, and show that the run waits for the user's answer, within the block."""
        with self._transcript.lock:
            activity, runs = self.status.activity, self._paused_at is None
            self._paused_at = self._paused_at or time.monotonic()
            self._set(activity="waiting for your answer")
        try:
            yield
        finally:
            with self._transcript.lock:
                self._set(activity=activity)
                if runs:
                    self._resume_clock()

    def show_table(self) -> None:
        """Print the table of all attempts so far."""
        self.say(self.attempt_table.all_lines(self.width, self.glyphs))

    def _show(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = event
                self._started = time.monotonic()  # the time until now was setup
                self.say(self._header(event))
            case Phase() if self._is_abandoned():
                pass
            case Phase(text, passing):
                self._set(activity=one_line(text))
                # within a tool call only the live status shows a phase; else it is printed once
                if not (passing or self._open or text in self._phases):
                    self.say([self._line(f"{self.glyphs.dot} {one_line(text)}", "dim")])
                self._phases.add(text)
            case TextDelta():
                self._transcript.stream(event)
            case StepStarted(step):
                self._resume_clock()
                self._excerpts = 0
                self._interrupted = False
                self._open.clear()  # calls that were interrupted have no result
                self._set(step=step, activity="thinking")
                if not self._transcript.live and not self._footer:
                    figures = replace(self.status, activity="")
                    line = figures.line(self._seconds(), self.width, self.glyphs)
                    self.say([Text(), Text(line, "dim")])
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
                head, tail = (UNCUT, 0) if self._transcript.is_uncut else USER_LINES
                pieces = [f"> {line}" for line in fold(text, head, tail, self.glyphs.more)]
                self.say([Text(), *(Text(piece, "bold cyan") for piece in pieces)])
            case Notice(text, level):
                pieces = wrap(one_line(text), max(self.width - 2, 8))
                self.say([Text(f"! {piece}", _NOTICE[level]) for piece in pieces])
            case RunEnded(stop, _, summary) if self._footer and str(stop) in PAUSES:
                self._show_pause(str(stop), one_line(summary))
            case RunEnded(_, _, summary) if self._recorded and self._is_known(summary):
                pass  # a question after the end was answered
            case RunEnded():
                self._show_end(event)

    def _is_abandoned(self) -> bool:
        """Return True for a phase of work that the user has interrupted.

        It continues in another thread for a while, when the run already waits for the user or for
        the model, or has ended.
        """
        idle = self._paused_at is not None or (self.status.step > 0 and not self._open)
        idle |= self._interrupted
        return idle and threading.current_thread() is not threading.main_thread()

    def _is_known(self, summary: str) -> bool:
        """Return True if this summary was shown and no attempt was judged for the record since."""
        return bool(self._summary) and one_line(summary) == self._summary and not self._table_due

    def _show_end(self, event: RunEnded) -> None:
        self._summary = one_line(event.summary)
        self._interrupted = str(event.stop) == "interrupted"
        self._transcript.end()
        numbers, table = self.attempt_table.numbers, self._final_table()
        lines = summary_lines(event, self._run, numbers, self.width, self.glyphs)
        self.say([Text(), *table, *([Text()] if table else []), *lines])

    def _final_table(self) -> list[Text]:
        """Return the table of all attempts; [] if the only attempt is already on the screen."""
        fewest, self._table_due = 1 if self._table_due else 2, False
        return self.attempt_table.all_lines(self.width, self.glyphs, fewest)

    def _show_pause(self, stop: str, summary: str) -> None:
        """Show why the run stopped, and its summary if that has changed since the last pause."""
        if self._table_due:
            self.say([Text(), *self._final_table()])
        known, self._summary = summary == self._summary, summary
        said = stop if known else f"{stop}: {summary}"
        answer = known and stop == "answered"  # the answer is already on the screen
        rows = [] if answer else [Text(), *(Text(row, "yellow") for row in wrap(said, self.width))]
        self.say(rows)

    def _header(self, run: RunStarted) -> list[Text]:
        text = one_line(f"{run.task} on {run.device}, by {run.model}")
        folder = wrap(one_line(f"run {short_path(run.folder)}"), self.width)
        return [self._line(text, "bold"), *(Text(piece, "dim") for piece in folder)]

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
        self.say([title])

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
        if event.seconds >= 1 and event.name != "compile":  # compile's own text has its time
            lines.append(Text(f"  {duration(event.seconds)}", "dim"))
        self.say(lines)

    def _result(self, event: ToolFinished, started: ToolStarted | None) -> list[Text]:
        if self._judged:
            return []  # the judgement above is clearer than the text made for the model
        if started is not None and not event.is_error:
            code = self._code(started, str(event.data.get("diff", "")))
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
        folded = fold(
            event.output, UNCUT if self._transcript.is_uncut else head, tail, self.glyphs.more
        )
        if event.is_error or event.name == "profile":
            rows = (indented(line, self.width, self.glyphs.more) for line in folded)
            return [Text(row, style) for each in rows for row in each]
        return [self._line(f"  {line}", style) for line in folded]

    def _code(self, started: ToolStarted, diff: str) -> list[Text]:
        """Return an excerpt of a written or changed text; [] for a call of another tool."""
        most = LOG_LINES if self._transcript.is_uncut else LINES
        if started.name == "write":
            self._excerpts += 1
            is_module = one_line(started.summary).endswith("model_new.py")
            most = most if self._excerpts <= EXCERPTS or is_module else 0
        return written(started.name, started.arguments, self.width, self.glyphs, most, diff=diff)

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
        self.say(lines + why)

    def _show_ladder(self, found: Ladder) -> None:
        self._ladder_shown = True
        self.attempt_table.measure_ladder(found)
        notes = [self._line(f"  {note}", "yellow") for note in found.notes]
        lines = self.attempt_table.ladder_lines(self.width, self.glyphs)
        self.say([*lines, *settings_lines(found, self.width), *notes])

    def _improve(self) -> None:
        """Set the best speedup in the status from the latest timing of each attempt."""
        if gain := self.attempt_table.best:
            self._set(best=gain.value, sure=gain.standing is not Standing.INCONCLUSIVE)

    def _line(self, text: str, style: str) -> Text:
        return Text(clip(text, self.width, self.glyphs.more), style)

    def _set(self, **changes: object) -> None:
        with self._transcript.lock:
            self.status = replace(self.status, **changes)  # type: ignore[arg-type]

    def _resume_clock(self) -> None:
        if self._paused_at is not None:
            self._started += time.monotonic() - self._paused_at
            self._paused_at = None

    def _seconds(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return self._seconds_at_step if self._recorded else now - self._started

    def _is_two_sided(self) -> bool:
        return two_sided(self.attempt_table, self.console.width - 1, self.console.height)

    def _live_lines(self, tick: int) -> list[Text]:
        # one column stays free: a full last line would wrap and could not be redrawn in place
        if self._is_two_sided():
            return self._panel(self.console.width - 1, tick, self.status)
        pending = one_line(self._transcript.pending)
        status = replace(self.status, activity=pending) if pending else self.status
        line = status.line(self._seconds(), self.width - 1, self.glyphs, tick)
        return [Text(line, "dim")]

    def _panel(self, width: int, tick: int | None, status: Status) -> list[Text]:
        pending = self._transcript.pending
        recent_output = [pending] if pending else self._recent_output
        rows, seconds = self.console.height, self._seconds()
        return panel_lines(
            status, recent_output, self.attempt_table, seconds, width, rows, self.glyphs, tick
        )
