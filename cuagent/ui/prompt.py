"""Read the user's input line at the bottom of the terminal, also while the agent works.

The prompt runs in a separate thread; printed output appears above it. While the agent is idle, the
main thread calls `next`; while it works, lines go to the handlers in `Work`; `ask` asks a question.
Keys: Enter sends, Alt-Enter or Ctrl-J makes a new line, Up and Down show earlier inputs, Tab
completes a command or a file name, Esc or Ctrl-C interrupts, twice leaves.

Not covered: the meaning of the lines.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from queue import Empty, SimpleQueue

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from cuagent.ui.footer import Footer
from cuagent.ui.text import clip, wrap

REFRESH = 0.25
"""Seconds between two updates of the status above the input line."""
TWICE = 1.5
"""A second interrupt within this many seconds leaves the session."""
GRAY = "ansibrightblack"
AGAIN = "press it again to leave"


@dataclass(frozen=True)
class Work:
    """Handlers for the user's lines (`take`) and interrupts while the agent works."""

    take: Callable[[str], None]
    interrupt: Callable[[], None]


class Prompt:
    """Context manager for the input line. Within it, stdout and stderr are printed above the input
    line.

    `commands` maps slash commands to their help, `history` is the file of earlier inputs. `status`
    returns the lines above the input for a width in characters. `names` returns words to complete.
    """

    def __init__(
        self,
        commands: Mapping[str, str],
        history: Path | None = None,
        status: Callable[[int], list[str]] = lambda width: [],
        names: Callable[[], Iterable[str]] = list,
    ) -> None:
        self.commands = commands
        self.status = status
        self.names = names
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._work: Work | None = None
        self._question = ""
        self._default = ""
        self._hint = ""
        self._footer = Footer()
        self._interrupted = 0.0
        self._closing = False
        self._stopped = threading.Event()
        self._released = threading.Event()
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=self._keys(),
            erase_when_done=True,
            refresh_interval=REFRESH,
        )
        app = self._session.app
        app.ttimeoutlen, app.timeoutlen = 0.05, 0.2
        app.terminal_size_polling_interval = None  # `Footer` does that itself
        app.before_render += lambda app: self._footer.follow(app)
        self._footer.follow_erasing(app)
        app.after_render += lambda app: self._footer.remember(app)
        self._thread = threading.Thread(target=self._run, daemon=True, name="prompt")

    def __enter__(self) -> Prompt:
        self._patched = patch_stdout(raw=True)
        self._patched.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        while not self._stopped.wait(0.02):
            app = self._session.app
            if app.loop is not None and app.is_running:
                app.loop.call_soon_threadsafe(self._exit)
        # flush printed text before the event loop ends, since printing may need it
        self._patched.__exit__(None, None, None)
        self._released.set()
        self._thread.join()

    def next(self, default: str = "") -> str | None:
        """Wait for the user's next line while the agent is idle; None means that the user quits.

        `default` is put into the input line for the user to edit.
        """
        if default:
            self._default = default
            self._exit_soon()
        return self._lines.get()

    def put(self, line: str) -> None:
        """Queue a line as if the user had sent it while the agent is idle."""
        self._lines.put(line)

    def leave(self) -> None:
        """Queue the end of input, as if the user had quit."""
        self._lines.put(None)

    @contextmanager
    def working(self, work: Work) -> Iterator[None]:
        """Send the user's lines and interrupts to `work` within the block.

        An interrupt before the block does not count as the first of two.
        """
        self._work, self._interrupted = work, 0.0
        try:
            yield
        finally:
            self.stop_working()

    def stop_working(self) -> None:
        """Send later lines to `next` again, even if the `working` block has not ended."""
        self._work, self._hint = None, ""

    def ask(self, question: str, cancelled: threading.Event) -> str | None:
        """Show a question and return the user's answer; return None once `cancelled` is set."""
        self._question = question
        try:
            while not cancelled.is_set():
                try:
                    return self._answers.get(timeout=0.05)
                except Empty:
                    pass
        finally:
            self._question = ""
        return None

    def _run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        while not self._closing:
            default, self._default = self._default, ""
            try:
                line = await self._session.prompt_async(
                    self._message, default=default, handle_sigint=False
                )
            except _Renew:
                continue
            except EOFError:
                line = None
            if not self._closing:
                self._dispatch(line)
                if line is None:
                    break
        self._stopped.set()
        while not self._released.is_set():
            await asyncio.sleep(0.02)

    def _dispatch(self, line: str | None) -> None:
        work = self._work
        if line is None:
            if work is not None:
                work.interrupt()
            self._lines.put(None)
        elif self._question:
            self._answers.put(line.strip())
        elif work is not None:
            if line.strip():
                work.take(line.strip())
        else:
            self._lines.put(line.strip())

    def _message(self) -> StyleAndTextTuples:
        width = self._session.app.output.get_size().columns
        typed = self._session.default_buffer.text
        lines = self.status(width - 1)
        if self._question:
            lines = [*wrap(self._question, width - 1), *lines[-1:]]
        elif self._hint and time.monotonic() - self._interrupted < TWICE:
            lines = [*lines[:-1], clip(self._hint, width - 1)]
        elif typed.startswith("/") and (known := _matching(self.commands, typed)):
            lines = [*lines[:-1], clip(known, width - 1)]
        return [(GRAY, "".join(line + "\n" for line in lines)), ("bold", "> ")]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self._work is None and event.current_buffer.text:
                event.current_buffer.reset()
            else:
                self._interrupt(event)

        @keys.add("escape")
        def _(event: KeyPressEvent) -> None:
            if self._work is not None:
                self._interrupt(event)

        @keys.add("tab")
        def _(event: KeyPressEvent) -> None:
            typed = event.current_buffer.document.text_before_cursor
            if typed.startswith("/") and " " not in typed:
                rest = _common_rest([f"/{name}" for name in self.commands], typed)
            else:
                rest = _common_rest(self.names(), re.split(r"\s", typed)[-1])
            event.current_buffer.insert_text(rest)

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return keys

    def _interrupt(self, event: KeyPressEvent) -> None:
        now = time.monotonic()
        twice, self._interrupted = now - self._interrupted < TWICE, now
        if twice:
            event.app.exit(exception=EOFError())
        elif self._work is not None:
            self._hint = f"interrupting; {AGAIN}"
            self._work.interrupt()
        else:
            self._hint = AGAIN

    def _exit_soon(self) -> None:
        app = self._session.app
        if app.loop is not None and app.is_running:
            app.loop.call_soon_threadsafe(self._renew)

    def _renew(self) -> None:
        if self._session.app.is_running:
            self._session.app.exit(exception=_Renew())

    def _exit(self) -> None:
        if self._session.app.is_running:
            self._session.app.exit(exception=EOFError())


class _Renew(Exception):
    """Raised to end the current prompt, so that it is shown again with another default text."""


def _completions(commands: Mapping[str, str], typed: str) -> list[str]:
    """Return the names of the commands that start with the typed text, such as `/he`."""
    return [name for name in commands if f"/{name}".startswith(typed)]


def _common_rest(names: Iterable[str], begun: str) -> str:
    """Return the text that completes `begun` up to where the matching names differ; "" if none.

    For `restore` and `restart`, `re` is completed by `st`.
    """
    ends = [name[len(begun) :] for name in names if begun and name.startswith(begun)]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*ends, strict=False))
    return "".join(letters[0] for letters in same)


def _matching(commands: Mapping[str, str], typed: str) -> str:
    """Return one line: the help of the typed command, or the commands that match so far."""
    word = typed[1:].split(" ")[0]
    if word in commands:
        return f"/{word}: {commands[word]}"
    return "  ".join(f"/{name}" for name in _completions(commands, typed))


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
