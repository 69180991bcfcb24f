"""Run `optimize` with a user at the terminal: the agent's work and the user's input alternate.

While the agent works, each line of input is a message that it reads before its next step. While it
is idle, a line starts it again, and an empty line lets it continue. A finished run needs a message
to continue. `slash.py` has the slash commands.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cuagent.agent import FINISHED, INTERACTIVE, TOOLS, Run, Stop, run_agent
from cuagent.agent.hooks import steering
from cuagent.agent.loop import announce
from cuagent.cli.approval import Ask, approved
from cuagent.cli.chat import Session
from cuagent.cli.progress import finished_text, is_finished, progress_lines, recall
from cuagent.cli.session import Plan, first_hooks, opened
from cuagent.cli.slash import COMMANDS, help_rows, is_known, run_command, unknown, while_working
from cuagent.cli.user_command import SIGN
from cuagent.events import RunEnded
from cuagent.ui.notify import notify
from cuagent.ui.prompt import Prompt, Work
from cuagent.ui.table import label_lines
from cuagent.ui.terminal import Terminal
from cuagent.ui.text import clean, wrap

if TYPE_CHECKING:
    from cuagent.agent.tools import Context
    from cuagent.config import Settings
    from cuagent.events import Emit, Event

LONG = 10.0
"""Seconds of work after which the user is notified of its end."""
CONTINUE = "Go on."
"""Message to the model for an empty line of input, if the model waits for an answer."""
LIMITS = (Stop.STEP_LIMIT, Stop.COST_LIMIT, Stop.TIME_LIMIT, Stop.DEVICE_LIMIT)


def run_session(plan: Plan) -> tuple[Run, Stop]:
    """Run an interactive session until the user leaves; return the run and why it stopped."""
    said: list[str] = []

    def take(line: str) -> None:
        if line.startswith("/q"):
            interrupt_main()
        elif line.split() == ["/help"]:
            view.say(label_lines(help_rows(), view.width))
        elif line.startswith("/") and not is_known(line):
            view.say(Text(piece, "yellow") for piece in wrap(unknown(line), view.width))
        elif line.startswith(("/", SIGN)):
            view.say([Text(f"  {clean(line)}: wait until the task is open", "yellow")])
        else:
            said.append(line)
            view.say([Text(f"  queued: {line}", "dim")])

    with ExitStack() as stack:
        prompt = stack.enter_context(Prompt(COMMANDS, history_file()))
        view = stack.enter_context(Terminal(sys.stdout, footer=True))
        prompt.status = view.footer_lines
        with prompt.working(Work(take, interrupt_main)):
            run = stack.enter_context(opened(plan, view))
        prompt.names = lambda: tuple(run.files)
        for line in said:
            run.inbox.put(line)
        recall(run, view)
        session = Session(run, plan.model, TOOLS, plan.settings, view, prompt)
        session.first = first_hooks(plan)
        session.tools = approved(TOOLS, plan.settings.approval, asker(session))
        return run, converse(session, resumed=plan.resumed is not None)


def converse(session: Session, *, resumed: bool = False) -> Stop:
    """Alternate the agent's work and the user's input until the user leaves; return why the run
    stopped.

    `resumed` is True if an earlier run is continued.
    """
    run = session.run
    with _leaving_on_signals(session.prompt):
        if resumed:
            _welcome(session)
        if resumed and (run.stop is Stop.ANSWERED or is_finished(run)):
            _wait_first(session)
        else:
            _work(session)
        while (line := _next_line(session)) is not None:
            if line.startswith(SIGN):
                _user_command(session, line)
                continue
            if line.startswith("/"):
                waiting = run.inbox.qsize()
                if not run_command(session, line):
                    break
                if run.inbox.qsize() > waiting:  # typed while the command ran
                    _work(session)
                continue
            if line:
                run.inbox.put(line)
            elif run.stop is Stop.ANSWERED and run.inbox.empty():
                run.inbox.put(CONTINUE)
            if is_finished(run):
                session.say("it is finished; type what to try next, or /quit")
                continue
            _raise_limit(session)
            _work(session)
    session.user_commands.end()
    steering(run, session.model)  # keep queued messages for a later session
    return run.stop or Stop.INTERRUPTED


def asker(session: Session) -> Ask:
    """Return a function that shows a whole command and asks the user to approve it.

    The user may answer with a slash command or a `!` command: it is run, and the question is asked
    again.
    """

    def ask(command: str, question: str, context: Context) -> str | None:
        if "\n" in command or len(command) > session.width - len(
            "* bash  "
        ):  # else it stands above
            lines = clean(command).split("\n")
            session.view.say(Text(f"  $ {line}", "yellow") for line in lines)
        _notify(session.settings, "cuagent waits for your approval")
        answer: str | None = ""
        with session.view.asking():
            while answer == "":
                answer = session.prompt.ask(question, context.run.cancelled)
                if answer is not None and answer.startswith(("/", SIGN)):
                    while_working(session, answer)
                    answer = ""
        return answer

    return ask


def interrupt_main() -> None:
    """Send SIGINT to the main thread; called in the thread that reads the keys."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def history_file() -> Path:
    """Return the path of the file with the user's earlier inputs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "cuagent" / "history"


def _welcome(session: Session) -> None:
    """Show the state of a resumed run, without its attempts, which were shown before."""
    for line in progress_lines(session.run):
        session.say(line)


def _wait_first(session: Session) -> None:
    """Show a resumed run as paused, until the user's first message starts it."""
    run = session.run
    run.emit = session.view
    announce(run, session.model)
    run.stop_clock()
    session.view.pause(finished=is_finished(run))
    if run.stop is not Stop.ANSWERED:
        session.say(f"{finished_text(run.stop, run.folder.id)}, or type what to try next", "yellow")


def _user_command(session: Session, line: str) -> None:
    """Run a user's `!` command while the agent is idle; Esc ends it, and typed lines are queued."""
    typed: list[str] = []
    with session.prompt.working(Work(typed.append, session.user_commands.end)):
        session.user_commands.run(line)
    for later in typed:
        session.prompt.put(later)


def _next_line(session: Session) -> str | None:
    draft, session.draft = session.draft, ""
    try:
        return session.prompt.next(draft)
    except KeyboardInterrupt:
        return None


def _work(session: Session) -> None:
    run, started = session.run, time.monotonic()
    stop = _stopped(session)
    while stop in FINISHED and not is_finished(run) and not run.cancelled.is_set():
        stop = _stopped(session)  # a message arrived meanwhile
    session.view(run.spent())
    session.view.pause(finished=is_finished(run), queued=not run.inbox.empty())
    if time.monotonic() - started >= LONG:
        _notify(session.settings, f"cuagent: {run.task.name}: {stop}")
    if stop in LIMITS:
        session.say(f"{stop}: press Enter, or type a message, to continue with a higher limit")
    if stop is Stop.CONTEXT_FULL:
        session.say(
            f"{stop}, even after compaction: switch to a model with a larger context, /model NAME"
        )


def _stopped(session: Session) -> Stop:
    run, hooks = session.run, (*session.first, *INTERACTIVE)
    work = Work(lambda line: while_working(session, line), session.interrupt)
    with session.prompt.working(work):
        emit = to_the_end(session.prompt, session.view)
        return run_agent(run, session.model, session.tools, hooks, emit)


def to_the_end(prompt: Prompt, view: Emit) -> Emit:
    """Return an event sink that passes events on to `view`.

    At the end of a run it first stops sending the user's input to the agent.
    """

    def emit(event: Event) -> None:
        if isinstance(event, RunEnded):
            prompt.stop_working()
        view(event)

    return emit


def _raise_limit(session: Session) -> None:
    """Raise the limit that stopped the run by its original amount, because the user continues."""
    run, first = session.run, session.settings
    more: dict[Any, dict[str, Any]] = {
        Stop.STEP_LIMIT: {"steps": run.steps + first.max_steps},
        Stop.COST_LIMIT: {"cost": run.known_cost + first.max_cost},
        Stop.TIME_LIMIT: {"seconds": run.seconds + first.max_time},
        Stop.DEVICE_LIMIT: {"device_seconds": run.device_seconds + first.max_device_time},
    }
    if run.stop in more:
        run.budget = replace(run.budget, **more[run.stop])


def _notify(settings: Settings, text: str) -> None:
    if sys.__stdout__ is not None:
        notify(text, sys.__stdout__, settings.notify, settings.notify_command)


@contextmanager
def _leaving_on_signals(prompt: Prompt) -> Iterator[None]:
    """Leave the session on SIGINT and SIGTERM within the block.

    Ctrl-C is read as a key, so such signals come from other processes.
    """

    def leave(number: int, frame: object) -> None:
        prompt.leave()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
