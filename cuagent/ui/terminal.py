"""The view for a person: an append-only transcript and, on a terminal, one live line below it.

What has been printed is never touched again; only the last line is redrawn in place, in one write
with a carriage return, so nothing flickers and scrolling back works. Without a terminal there is
no live line and no control character, and the figures come as a line for each step.
Invariant: every write goes through `_write`, under the lock that the ticking live line shares.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cuagent.events import (
    Event,
    Judged,
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
from cuagent.ui.attempts import Board
from cuagent.ui.code import written
from cuagent.ui.flow import Flow
from cuagent.ui.keys import silent_keys
from cuagent.ui.status import Status
from cuagent.ui.summary import short_path, summary_lines
from cuagent.ui.table import least_ratio, why_lines
from cuagent.ui.text import clean, clip, duration, fold, glyphs_for, one_line, wrap

if TYPE_CHECKING:
    from cuagent.judge import Judgement

TICK = 0.25
"""Seconds between two states of the live line."""
WIDEST = 120
"""Columns; longer lines are hard to read, and nothing here needs them."""
KEPT = {"bash": (4, 3), "compile": (6, 0), "profile": (12, 0)}
"""First and last lines kept of a tool's output; `OTHERS` of one that is not named, or an error."""
OTHERS, OF_ERROR = (3, 0), (4, 3)
PAUSES = ("interrupted", "answered")
"""Ends after which a person who sits by goes on; they need no summary."""
_NOTICE = {"info": "cyan", "warning": "yellow", "error": "red"}


class Terminal:
    """Shows the events of one run on `stream`; used as a context manager.

    For a `recorded` run there is no live line, and time is what the log says. With `foot` somebody
    else shows what stands below the transcript (`foot_lines`), and only whole lines are written.
    """

    def __init__(self, stream: TextIO, *, recorded: bool = False, foot: bool = False) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a tool prints may not fit the encoding
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self.glyphs = glyphs_for(stream.encoding)
        self.status = Status()
        self.board = Board()
        self._recorded = recorded
        self._foot = foot
        self._held = ""
        self._live = (
            not recorded
            and not foot
            and self.console.is_terminal
            and not self.console.is_dumb_terminal
        )
        self._reflows = os.environ.get("TERM") != "linux" and "XTERM_VERSION" not in os.environ
        self._echo = ExitStack()
        self._seconds_at_step = 0.0
        self._drawn = 0
        self._flow: Flow | None = None
        self._flow_style = ""
        self._run: RunStarted | None = None
        self._open: dict[str, ToolStarted] = {}
        self._last_call = ""
        self._judged = False
        self._started = time.monotonic()
        self._rested: float | None = None
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
        return min(self.console.width, WIDEST)

    def __call__(self, event: Event) -> None:
        """Show one event, from whatever thread."""
        with self._lock:
            self._show(event)

    def foot_lines(self, width: int) -> list[str]:
        """What stands below the transcript: the line that is being streamed, and the status."""
        with self._lock:
            tick = self._tick if self._rested is None else None
            status = self.status.line(self._seconds(), width, self.glyphs, tick)
            self._tick += 1
            return [clip(self._held, width, self.glyphs.more), status] if self._held else [status]

    def say(self, lines: Iterable[Text]) -> None:
        """Add lines that are no event of the run."""
        self._print(lines)

    def recall(self, judged: Iterable[tuple[int, Judgement]]) -> None:
        """Attempts of an earlier session, by their numbers."""
        with self._lock:
            for number, judgement in judged:
                self.board.keep(number, judgement)
                self._improve(judgement)
        self.show_table()

    def rest(self) -> None:
        """It is the user's turn: the clock stands until the next step."""
        with self._lock:
            self._rested = self._rested or time.monotonic()
            self._set(activity="your turn: Enter goes on, /help")

    def show_table(self) -> None:
        """All attempts so far."""
        self._print(self.board.whole(self.width, self.glyphs))

    def _show(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = event
                self._print(self._header(event))
            case Phase(text):
                self._set(activity=one_line(text))
                if not self._open:  # within a call it is for the live line alone
                    self._print([self._line(f"{self.glyphs.dot} {one_line(text)}", "dim")])
            case TextDelta():
                self._stream(event)
            case StepStarted(step):
                self._go_on()
                self._set(step=step, activity="thinking")
                if not self._live and not self._foot:
                    figures = replace(self.status, activity="")
                    line = figures.line(self._seconds(), self.width, self.glyphs)
                    self._print([Text(), Text(line, "dim")])
            case ToolStarted():
                self._tool_started(event)
            case ToolOutput():
                self._tool_output(event)
            case ToolFinished():
                self._tool_finished(event)
            case Judged():
                self._show_judged(event)
            case Spent():
                tokens = event.tokens_in + event.tokens_out
                self._set(step=event.step, tokens=tokens, cost=event.cost)
                self._seconds_at_step = event.seconds
            case UserSaid(text):
                pieces = [f"> {line}" for line in clean(text).strip().split("\n")]
                self._print([Text(), *(Text(piece, "bold cyan") for piece in pieces)])
            case Notice(text, level):
                pieces = wrap(one_line(text), max(self.width - 2, 8))
                self._print([Text(f"! {piece}", _NOTICE[level]) for piece in pieces])
            case RunEnded(stop, _, summary) if self._foot and str(stop) in PAUSES:
                self._print([Text(), self._line(f"{stop}: {one_line(summary)}", "yellow")])
            case RunEnded():
                self._ended.set()
                numbers, table = self.board.numbers, self.board.whole(self.width, self.glyphs, 2)
                lines = summary_lines(event, self._run, numbers, self.width, self.glyphs)
                self._print([Text(), *table, *([Text()] if table else []), *lines])

    def _header(self, run: RunStarted) -> list[Text]:
        text = f"{run.task} on {run.device}, by {run.model}"
        folder = clip(f"run {short_path(run.folder)}", self.width, self.glyphs.more)
        return [self._line(text, "bold"), Text(folder, "dim")]

    def _stream(self, event: TextDelta) -> None:
        style = "dim" if event.kind == "reasoning" else ""
        if self._flow is not None and self._flow_style != style:
            self._print([])
        elif self._flow is None and (self._live or self._foot):
            self._print([Text()])  # without a live line the figures of the step stand here
        if self._flow is None:
            self._flow = Flow(self.width if self.console.is_terminal else None)
            self._flow_style = style
        # A tab or a bell of the model's is not for the terminal; line ends are the flow's.
        ready = self._flow.feed(clean(event.text))
        if self._foot:
            whole, newline, self._held = (self._held + ready).rpartition("\n")
            ready = whole + newline
        if ready:
            self._write(self._styled(ready))

    def _tool_started(self, event: ToolStarted) -> None:
        self._open[event.call_id] = event
        self._last_call = event.call_id
        self._judged = False
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

    def _tool_finished(self, event: ToolFinished) -> None:
        started = self._open.pop(event.call_id, None)
        self._set(activity="")
        lines = []
        if started is not None and event.call_id != self._last_call:
            # its own title is no longer the line above
            summary = f"{started.name} {one_line(started.summary)}"
            lines.append(self._line(f"  {self.glyphs.result} {summary}", "dim"))
        self._last_call = ""
        lines += self._result(event, started)
        if event.seconds >= 1 and not self._judged:
            lines.append(Text(f"  {duration(event.seconds)}", "dim"))
        self._print(lines)

    def _result(self, event: ToolFinished, started: ToolStarted | None) -> list[Text]:
        if self._judged:
            return []  # the judgement above says it better than the text made for the model
        if started is not None and not event.is_error:
            code = written(started.name, started.arguments, self.width, self.glyphs)
            if code:
                return code
        if event.name == "baseline" and (times := event.data.get("times")):
            return self.board.ladder(times, self.width, self.glyphs)
        if not event.output.strip():
            return []
        head, tail = OF_ERROR if event.is_error else KEPT.get(event.name, OTHERS)
        style = "red" if event.is_error else "dim"
        folded = fold(event.output, head, tail, self.glyphs.more)
        return [self._line(f"  {line}", style) for line in folded]

    def _show_judged(self, event: Judged) -> None:
        judgement: Judgement = event.judgement
        self._judged = True
        self._improve(judgement)
        lines = self.board.news(event.attempt, judgement, self.width, self.glyphs)
        self._print(lines + why_lines(judgement, self.width, self.glyphs))

    def _improve(self, judgement: Judgement) -> None:
        worth = least_ratio(judgement.timing)
        if judgement.verdict.accepted and worth is not None:
            self._set(best=max(worth, self.status.best or 0.0))

    def _line(self, text: str, style: str) -> Text:
        return Text(clip(text, self.width, self.glyphs.more), style)

    def _set(self, **changes: object) -> None:
        with self._lock:
            self.status = replace(self.status, **changes)  # type: ignore[arg-type]

    def _go_on(self) -> None:
        if self._rested is not None:
            self._started += time.monotonic() - self._rested
            self._rested = None

    def _seconds(self) -> float:
        now = time.monotonic() if self._rested is None else self._rested
        return self._seconds_at_step if self._recorded else now - self._started

    def _print(self, lines: Iterable[Text]) -> None:
        """End streamed text, if any, and add whole lines."""
        with self._lock:
            text = ""
            if self._flow is not None:
                text += self._styled(self._held + self._flow.end())
                self._flow, self._held = None, ""
            with self.console.capture() as capture:
                for line in lines:
                    self.console.print(line, soft_wrap=True)
            self._write(text + capture.get())

    def _styled(self, text: str) -> str:
        with self.console.capture() as capture:
            self.console.print(Text(text, self._flow_style), end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        """The transcript grows by `text`; the live line moves below it. One write, one flush."""
        with self._lock:
            erase = self._erase()
            live = self._status_line() if self._live and self._flow is None else ""
            if erase or text or live:
                self.console.file.write(erase + text + live)
                self.console.file.flush()

    def _erase(self) -> str:
        """What takes the live line away."""
        drawn, self._drawn = self._drawn, 0
        return self._to_start(drawn) + "\x1b[K" if drawn else ""

    def _to_start(self, drawn: int) -> str:
        """Back to where a live line of so many columns began.

        A terminal that has become narrower has broken it in two, unless it is one that cuts.
        """
        above = max(drawn - 1, 0) // self.console.width if self._reflows else 0
        return f"\x1b[{above}A\r\x1b[J" if above else "\r"

    def _status_line(self) -> str:
        # one column stays free: a full last line would wrap and could not be redrawn in place
        line = self.status.line(self._seconds(), self.width - 1, self.glyphs, self._tick)
        self._drawn = cell_len(line)
        with self.console.capture() as capture:
            self.console.print(Text(line, "dim"), end="", soft_wrap=True)
        return capture.get()

    def _keep_ticking(self) -> None:
        while not self._ended.wait(TICK):
            with self._lock:
                if self._live and self._flow is None:
                    self._tick += 1
                    start = self._to_start(self._drawn)
                    self.console.file.write(start + self._status_line() + "\x1b[K")
                    self.console.file.flush()
