"""`optimize` with a person at the terminal: what they type, and the commands behind a slash.

While the agent works a line is a message that it reads before its next step; while it rests a line
sets it to work again, and an empty one just lets it go on. The commands that go back or change
something wait until it rests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cuagent.agent import INTERACTIVE, Run, Stop, compact, diff, restore, run_agent, undo
from cuagent.agent.attended import Interrupted
from cuagent.agent.conclude import summarize
from cuagent.cli.approval import Ask
from cuagent.cli.exits import Refused
from cuagent.cli.session import speaker
from cuagent.models.model import ModelError
from cuagent.record import RecordError
from cuagent.ui.notify import notify
from cuagent.ui.prompt import Prompt, Work
from cuagent.ui.text import clean, clock, count, money

if TYPE_CHECKING:
    from cuagent.agent.tools import Context, Tool
    from cuagent.config import Settings
    from cuagent.models.model import Model
    from cuagent.ui.terminal import Terminal

COMMANDS = {
    "best": "the table of attempts and the best of them",
    "compact": "sum up the conversation; what follows is kept above all",
    "cost": "what was spent, and of what",
    "diff": "what changed since the best attempt, since attempt A, or from A to B",
    "help": "these commands and the keys",
    "model": "the model that answers; with a name, change it",
    "quit": "leave; the run can be taken up again",
    "restore": "put the files of attempt N back",
    "undo": "take the last step back, its files too",
}
ANYTIME = ("best", "cost", "help", "quit")
"""What only looks, or leaves: allowed while the agent works."""
KEYS = (
    "Enter sends, Alt-Enter or Ctrl-J makes a new line, Up brings back what was said, "
    "Esc or Ctrl-C interrupts, twice leaves. While the agent works, what is sent waits for its "
    "next step; while it rests, an empty line lets it go on."
)
LONG = 10.0
"""Seconds of work after which the user is told that it has ended."""
LIMITS = (Stop.STEP_LIMIT, Stop.COST_LIMIT, Stop.TIME_LIMIT, Stop.DEVICE_LIMIT)


@dataclass
class Session:
    """One sitting: the run, who speaks in it, and through what the user sees and says things."""

    run: Run
    model: Model
    tools: Sequence[Tool]
    settings: Settings
    view: Terminal
    prompt: Prompt
    draft: str = ""
    """What is typed already when the user's turn comes."""

    def say(self, text: str, style: str = "dim") -> None:
        self.view.say(Text(line, style) for line in clean(text).split("\n"))


def converse(session: Session, *, begin: bool) -> Stop:
    """Work and rest in turn until the user leaves; `begin` sets to work at once."""
    run = session.run
    with _leaving_on_signals(session.prompt):
        if begin:
            _work(session)
        else:
            session.view.rest()
        while (line := _next(session)) is not None:
            if line.startswith("/"):
                if not _obey(session, line):
                    break
                continue
            if line:
                run.inbox.put(line)
            _widen(session)
            _work(session)
    return run.stop or Stop.INTERRUPTED


def asker(prompt: Prompt, view: Terminal, settings: Settings) -> Ask:
    """Puts the question of an approval to the user, who sees the whole of the command."""

    def ask(command: str, question: str, context: Context) -> str | None:
        view.say(Text(f"  $ {line}", "yellow") for line in clean(command).split("\n"))
        _tell(settings, "cuagent waits for your approval")
        answer: str | None = ""
        while answer == "":
            answer = prompt.ask(question, context.run.cancelled)
        return answer

    return ask


def interrupt_main() -> None:
    """Ctrl-C for the main thread, from the thread that reads the keys."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def history_file() -> Path:
    """Where what was typed is kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "cuagent" / "history"


def _next(session: Session) -> str | None:
    draft, session.draft = session.draft, ""
    try:
        return session.prompt.next(draft)
    except KeyboardInterrupt:
        return None


def _work(session: Session) -> None:
    run, begun = session.run, time.monotonic()
    work = Work(lambda line: _while_working(session, line), run.cancel)
    with session.prompt.working(work):
        stop = run_agent(run, session.model, session.tools, INTERACTIVE, session.view)
    session.view.rest()
    if time.monotonic() - begun >= LONG:
        _tell(session.settings, f"cuagent: {run.task.name}: {stop}")
    if stop in LIMITS:
        session.say(f"{stop}: say something, or press Enter, to go on with a wider one")


def _while_working(session: Session, line: str) -> None:
    """In the prompt's thread: it may look, steer and interrupt, and nothing else."""
    if not line.startswith("/"):
        session.say(f"  queued: {line}")
        session.run.inbox.put(line)
    elif _name(line) == "quit":
        session.run.cancel()
        session.prompt.leave()
    elif _name(line) in ANYTIME:
        _obey(session, line)
    else:
        session.say(f"  {line}: the agent works; press Esc first", "yellow")


def _obey(session: Session, line: str) -> bool:
    """Do a command; False to leave."""
    name, words = _name(line), line.split()[1:]
    if name == "quit":
        return False
    session.say(f"\n> {line}", "bold")
    command: Callable[[Session, list[str]], None] | None = _DO.get(name)
    if command is None:
        session.say(f"no command /{name}; there are {', '.join('/' + c for c in COMMANDS)}")
        return True
    try:
        command(session, words)
    except (RecordError, ModelError, Refused) as error:
        session.say(str(error), "yellow")
    return True


def _name(line: str) -> str:
    """The command meant: what was typed, or the only one that it begins."""
    word = (line[1:].split() or [""])[0]
    meant = [name for name in COMMANDS if name.startswith(word)]
    return meant[0] if word not in COMMANDS and len(meant) == 1 else word


def _help(session: Session, words: list[str]) -> None:
    for name, help in COMMANDS.items():
        session.say(f"  /{name:<8} {help}", "")
    session.say(KEYS)


def _undo(session: Session, words: list[str]) -> None:
    undone = undo(session.run)
    if undone is None:
        session.say("there is no step to take back")
        return
    what = f" ({', '.join(undone.calls)})" if undone.calls else ""
    session.say(f"the last step is taken back{what}, its files too")
    session.draft = undone.said


def _diff(session: Session, words: list[str]) -> None:
    run = session.run
    numbers = [_number(word) for word in words[:2]]
    if not numbers:
        if run.best is None:
            raise Refused("no attempt was accepted yet; name one: /diff A, or /diff A B")
        numbers = [run.best.n]
    text = diff(run, *numbers)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in text.splitlines():
        session.say(line, "bold" if line[:3] in ("+++", "---") else colours.get(line[:1], ""))
    if not text:
        session.say("no difference")


def _best(session: Session, words: list[str]) -> None:
    session.view.show_table()
    session.say(summarize(session.run), "")


def _restore(session: Session, words: list[str]) -> None:
    if len(words) != 1:
        raise Refused("which attempt? /restore N")
    tried = restore(session.run, _number(words[0]))
    session.say(f"the files of attempt {tried.n} are back")


def _compact(session: Session, words: list[str]) -> None:
    work = Work(lambda line: _while_working(session, line), session.run.cancel)
    session.run.cancelled.clear()
    session.run.emit = session.view
    try:
        with session.prompt.working(work):
            if not compact(session.run, session.model, " ".join(words)):
                session.say("there is nothing to sum up yet")
    except (Interrupted, KeyboardInterrupt):
        session.say("interrupted: the conversation stays as it is")


def _cost(session: Session, words: list[str]) -> None:
    run, budget = session.run, session.run.budget
    usage = run.usage
    rows: list[tuple[str, float | None, float | None, Callable[[Any], str]]] = [
        ("steps", run.steps, budget.steps, str),
        ("cost", run.cost, budget.cost, money),
        ("time", run.seconds, budget.seconds, clock),
        ("device", run.device_seconds, budget.device_seconds, clock),
    ]
    for name, spent, limit, words_for in rows:
        value = "unknown" if spent is None else words_for(spent)
        session.say(f"  {name:<7} {value}" + (f" of {words_for(limit)}" if limit else ""), "")
    parts = ((usage.input, "new"), (usage.cache_read, "cached"), (usage.cache_write, "to cache"))
    read = ", ".join(f"{count(number)} {what}" for number, what in parts)
    session.say(f"  tokens  in: {read}; out: {count(usage.output)}", "")
    session.say(f"  context about {count(run.context_tokens)} tokens", "")


def _model(session: Session, words: list[str]) -> None:
    if words:
        session.model = speaker(words[0], session.run.task, session.settings)
    session.say(f"the model is {session.model.name}")


_DO: dict[str, Callable[[Session, list[str]], None]] = {
    "best": _best,
    "compact": _compact,
    "cost": _cost,
    "diff": _diff,
    "help": _help,
    "model": _model,
    "restore": _restore,
    "undo": _undo,
}


def _number(word: str) -> int:
    if not word.isdecimal():
        raise Refused(f"{word!r} is no number of an attempt")
    return int(word)


def _widen(session: Session) -> None:
    """To go on after a limit, in person, is to agree to as much again."""
    run, first = session.run, session.settings
    more: dict[Any, dict[str, Any]] = {
        Stop.STEP_LIMIT: {"steps": run.steps + first.max_steps},
        Stop.COST_LIMIT: {"cost": (run.cost or 0.0) + first.max_cost},
        Stop.TIME_LIMIT: {"seconds": run.seconds + first.max_time},
        Stop.DEVICE_LIMIT: {"device_seconds": run.device_seconds + first.max_device_time},
    }
    if run.stop in more:
        run.budget = replace(run.budget, **more[run.stop])


def _tell(settings: Settings, text: str) -> None:
    if sys.__stdout__ is not None:
        notify(text, sys.__stdout__, settings.notify, settings.notify_command)


@contextmanager
def _leaving_on_signals(prompt: Prompt) -> Iterator[None]:
    """Keys are read raw, so a signal comes from elsewhere, and means the end."""

    def leave(number: int, frame: object) -> None:
        prompt.leave()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
