"""Run the slash commands of an interactive session.

Commands that only read work at any time; commands that change something wait until the agent
is idle.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cuagent.agent import compact, diff, restore, undo
from cuagent.agent.attended import Interrupted
from cuagent.agent.conclude import summarize
from cuagent.cli.exits import Refused
from cuagent.cli.progress import is_finished
from cuagent.cli.session import open_model
from cuagent.cli.user_command import SIGN
from cuagent.events import Phase
from cuagent.models.model import ModelError
from cuagent.record import RecordError
from cuagent.ui.prompt import Work
from cuagent.ui.text import clean, clock, count, money

if TYPE_CHECKING:
    from cuagent.agent import Run
    from cuagent.cli.chat import Session

COMMANDS = {
    "best": "show the table of attempts and the best one",
    "compact": "summarize the conversation; text after the command says what to keep",
    "cost": "steps, cost, time and tokens spent, and their limits",
    "diff": "show changes since the best (else last) attempt, since attempt A, or from A to B",
    "help": "show these commands and the keys",
    "model": "show the model; with a name, change it",
    "quit": "leave; the run can be resumed",
    "restore": "restore the files of attempt N",
    "undo": "undo the last step with its files, or the last /compact if no step followed",
}
ANYTIME = ("best", "cost", "diff", "help", "quit")
"""Commands that are allowed while the agent works: they only read, or leave the session."""
KEYS = (
    "Enter sends, Alt-Enter or Ctrl-J makes a new line, Tab completes commands and files, Up "
    "brings back what was said, Esc or Ctrl-C interrupts, twice leaves. While the agent works, "
    "what is sent waits for its next step; while it rests, an empty line lets it go on. "
    "!COMMAND runs in your own shell and shows you its output; !!COMMAND tells the model too."
)


def while_working(session: Session, line: str) -> None:
    """Handle a line of input while the agent works; called in the prompt's thread.

    The line may only show something, send a message to the model, or interrupt.
    """
    if line.startswith(SIGN):
        session.user_commands.begin(line)
    elif not line.startswith("/"):
        session.say(f"  queued: {line}")
        session.run.inbox.put(line)
    elif _name(line) == "quit":
        session.run.cancel()
        session.prompt.leave()
    elif _name(line) in ANYTIME or _name(line) not in COMMANDS or line.split() == ["/model"]:
        run_command(session, line)
    else:
        session.say(f"  {line}: the agent works; press Esc first", "yellow")


def run_command(session: Session, line: str) -> bool:
    """Run a slash command; return False if it leaves the session."""
    name, words = _name(line), line.split()[1:]
    if name == "quit":
        return False
    session.say(f"\n> {line}", "bold")
    command: Callable[[Session, list[str]], None] | None = _DO.get(name)
    if command is None:
        session.say(unknown(line), "yellow")
        return True
    try:
        command(session, words)
    except (RecordError, ModelError, Refused) as error:
        session.say(str(error), "yellow")
    return True


def is_known(line: str) -> bool:
    """Return True if a slash line names exactly one command."""
    return _name(line) in COMMANDS


def unknown(line: str) -> str:
    """Return the message to the user for an unknown slash command."""
    near = get_close_matches(_name(line), COMMANDS, 1)
    hint = f"did you mean /{near[0]}? " if near else ""
    return f"no command /{_name(line)}; {hint}there are {', '.join('/' + c for c in COMMANDS)}"


def _name(line: str) -> str:
    """Return the name of the command in a slash line, where an unambiguous prefix is enough."""
    word = (line[1:].split() or [""])[0]
    meant = [name for name in COMMANDS if name.startswith(word)]
    return meant[0] if word not in COMMANDS and len(meant) == 1 else word


def help_rows() -> list[tuple[str, str]]:
    """Return (command, help text) for each slash command."""
    return [(f"/{name}", what) for name, what in COMMANDS.items()]


def _help(session: Session, words: list[str]) -> None:
    session.say_rows(*help_rows())
    session.say(KEYS)


def _undo(session: Session, words: list[str]) -> None:
    undone = undo(session.run)
    if undone is None:
        session.say("there is no step to undo")
        return
    if undone.compaction:
        session.say(
            "the conversation is restored to its state before /compact; files are unchanged"
        )
    else:
        what = f" ({', '.join(undone.calls)})" if undone.calls else ""
        session.say(f"the last step is undone{what}, with its files")
    session.draft = undone.said


def _diff(session: Session, words: list[str]) -> None:
    run = session.run
    numbers = [_number(word) for word in words[:2]]
    if not numbers:
        since = run.best or (run.tried[-1] if run.tried else None)
        if since is None:
            raise Refused(f"there is no attempt yet; the agent's files are in {run.work}")
        numbers = [since.n]
    text = diff(run, *numbers)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    session.view.say(
        Text(line, "bold" if line[:3] in ("+++", "---") else colours.get(line[:1], ""))
        for line in clean(text).split("\n")
        if text
    )
    if not text:
        session.say(f"no difference from attempt {numbers[0]}")


def _best(session: Session, words: list[str]) -> None:
    session.view.show_table()
    session.say(summarize(session.run), "")


def _restore(session: Session, words: list[str]) -> None:
    if len(words) != 1:
        raise Refused("which attempt? /restore N")
    tried = restore(session.run, _number(words[0]))
    session.say(f"the files of attempt {tried.n} are restored")


def _compact(session: Session, words: list[str]) -> None:
    work = Work(lambda line: while_working(session, line), session.run.cancel)
    session.run.cancelled.clear()
    session.run.emit = session.view
    session.view(Phase("summarizing the conversation"))
    try:
        with session.prompt.working(work):
            if not compact(session.run, session.model, " ".join(words)):
                session.say("there is nothing to summarize yet")
    except (Interrupted, KeyboardInterrupt):
        session.say("interrupted: the conversation is unchanged")
    finally:
        run = session.run
        session.view(run.spent())
        session.view.pause(finished=is_finished(run), queued=not run.inbox.empty())


def _cost(session: Session, words: list[str]) -> None:
    run, budget = session.run, session.run.budget
    usage = run.usage
    parts = ((usage.input, "new"), (usage.cache_read, "cached"), (usage.cache_write, "to cache"))
    read = ", ".join(f"{count(number)} {what}" for number, what in parts)
    session.say_rows(
        ("steps", _of(run.steps, budget.steps, str)),
        ("cost", _of(run.known_cost, budget.cost, money) + _unpriced(run)),
        ("time", _of(run.seconds, budget.seconds, clock)),
        ("device", _of(run.device_seconds, budget.device_seconds, clock)),
        ("tokens", f"in: {read}; out: {count(usage.output)}"),
        ("context", f"about {count(run.context_tokens)} tokens"),
    )


def _unpriced(run: Run) -> str:
    """Return a note on the calls that the cost does not include, or ""."""
    if not run.unpriced_calls:
        return ""
    return f", without {run.unpriced_calls} of {run.steps} calls, whose price is not known"


def _of(spent: Any, limit: Any, words: Callable[[Any], str]) -> str:
    return words(spent) + (f" of {words(limit)}" if limit else "")


def _model(session: Session, words: list[str]) -> None:
    if words:
        try:
            session.model = open_model(words[0], session.run.task, session.settings, ask=False)
        except Refused as error:
            raise Refused(str(error).removeprefix("--model ")) from error
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
        raise Refused(f"{word!r} is not an attempt number")
    return int(word)
