"""A session at the terminal, and runs that are taken up again: real keys, real judge."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import TASK, Cuagent
from typist import Typist

from cuagent.agent import TOOLS, Stop
from cuagent.agent.tools import ToolError, ToolResult
from cuagent.cli import slash
from cuagent.cli.approval import approved
from cuagent.cli.exits import Refused
from cuagent.cli.interactive import to_the_end
from cuagent.cli.session import find_resumable
from cuagent.events import Phase, RunEnded, Spent
from cuagent.ui.prompt import TWICE

pytestmark = pytest.mark.slow

WRONG = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.clone()
"""
SUBMIT = {"text": "That is all.", "calls": [{"name": "submit", "arguments": {}}]}


def bash(command: str) -> dict[str, object]:
    return {"text": "I try.", "calls": [{"name": "bash", "arguments": {"command": command}}]}


@pytest.fixture
def folder(tmp_path: Path, ladder_known: None) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def script(folder: Path, *replies: dict[str, object], name: str = "script.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return f"scripted:{name}"


def messages(folder: Path) -> list[dict[str, Any]]:
    log = next((folder / ".cuagent" / "runs").glob("*/log.jsonl"))
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [record for record in records if record["type"] == "message"]


def test_a_person_steers_interrupts_looks_and_goes_on(folder: Path, python: list[str]) -> None:
    model = script(folder, bash("echo started; sleep 600"), SUBMIT)
    with Typist(python, folder, "optimize", "task.py", "--model", model, "-i") as user:
        user.see(": started")
        user.type("use float4\r")
        user.see("queued: use float4")
        user.type("/diff\r")
        user.see("there is no attempt yet")
        user.type("/undo\r")
        user.see("/undo: the agent works; press Esc first")
        user.type("/unknown\r")
        user.see("no command /unknown; there are /best,")
        user.type("\x1b")
        user.see("interrupted: no kernel tried")
        user.type("/cos\t\r")
        user.see("steps    1 of 100")
        user.type("/restore 3\r")
        user.see("no attempt 3")
        user.type("\r")
        user.see("> use float4")
        user.see("That is all.")
        user.see("stopped")
        user.type("/undo\r")
        user.see("the last step is undone (submit)")
        user.see("use float4")
        user.type("\x03")  # away with the draft: the user's own words, to be said again
        user.type("/quit\r")
        assert user.leave() == 0
        assert "Traceback" not in user.shown
    said = [m["content"] for m in messages(folder) if m["role"] == "user"]
    assert said[-1] == "use float4"


def test_an_interrupt_after_the_end_waits_although_a_message_is_queued(
    folder: Path, python: list[str]
) -> None:
    model = script(folder, SUBMIT, bash("echo started; sleep 600"), {"text": "As you say."})
    with Typist(python, folder, "optimize", "task.py", "--model", model, "-i") as user:
        user.see("stopped")
        user.type("try again\r")
        user.see(": started")
        user.type("use float4\r")
        user.see("queued: use float4")
        user.type("\x1b")
        user.see("your turn: Enter sends the queued message")
        assert "As you say." not in user.shown
        user.type("\r")
        user.see("As you say.")
        user.type("/quit\r")
        assert user.leave() == 0
    said = [m["content"] for m in messages(folder) if m["role"] == "user"]
    assert said[-2:] == ["try again", "use float4"], "and no second request to go on"


def test_two_interrupts_leave_and_say_how_to_go_on(folder: Path, python: list[str]) -> None:
    model = script(folder, bash("echo started; sleep 600"))
    with Typist(python, folder, "optimize", "task.py", "--model", model, "-i") as user:
        user.see(": started")
        user.type("\x03\x03")
        assert user.leave() == 130
        user.see("continue with:")
        user.see("cuagent optimize --resume")


def test_a_rejected_command_does_not_run_and_the_model_hears_why(
    folder: Path, python: list[str]
) -> None:
    model = script(folder, bash("touch forbidden"), bash("touch allowed"), SUBMIT)
    # --approval ask makes a session, also with a model that takes no instructions
    arguments = ("optimize", "task.py", "--model", model, "--approval", "ask")
    with Typist(python, folder, *arguments) as user:
        user.see("allow this command?")
        user.type("write files with the file tools\r")
        user.see("bash  touch allowed")
        user.see("allow this command?")
        user.type("y\r")
        user.see("That is all.")
        user.see("stopped")
        user.type("\x04")
        assert user.leave() == 0
    told = [m["content"] for m in messages(folder) if m["role"] == "tool"]
    assert "not allow this command: write files with the file tools" in told[0]
    work = next((folder / ".cuagent" / "runs").glob("*/work"))
    assert (work / "allowed").exists()
    assert not (work / "forbidden").exists()


def test_commands_of_the_users_own_run_in_their_shell_at_any_time(
    folder: Path, python: list[str]
) -> None:
    model = script(folder, bash("echo started; sleep 600"), {"text": "I see."}, SUBMIT)
    (folder / "mark.txt").write_text("in the folder of the user")
    with Typist(python, folder, "optimize", "task.py", "--model", model, "-i") as user:
        user.see(": started")
        user.type("!cat mark.txt\r")
        user.see("in the folder of the user")
        user.type("\x1b")
        user.see("interrupted: no kernel")
        user.type("!echo one; exit 3\r")
        user.see("one")
        user.see("exit code 3")
        user.type("!sleep 600; echo never\r")
        user.see("! sleep 600")
        time.sleep(TWICE)  # a second Esc leaves if it follows soon
        user.type("\x1b")
        user.see("killed by SIGKILL")
        user.type("!!echo two; echo three\r")
        user.see("the model gets the output with its next step")
        user.type("\r")
        user.see("I see.")
        user.type("/quit\r")
        user.leave()
        assert "Traceback" not in user.shown
    said = [m["content"] for m in messages(folder) if m["role"] == "user"]
    told = "I ran `echo two; echo three` myself. Its output:\n\ntwo\nthree"
    assert told in said
    assert not any("mark.txt" in text or "one" in text.split() for text in said[2:])


def test_at_a_question_a_slash_is_no_answer(folder: Path, python: list[str]) -> None:
    model = script(folder, bash("echo hello"), SUBMIT)
    arguments = ("optimize", "task.py", "--model", model, "-i", "--approval", "ask")
    with Typist(python, folder, *arguments) as user:
        user.see("allow this command?")
        user.type("/cost\r")
        user.see("1 of 100")
        user.type("/nonsense\r")
        user.see("no command /nonsense; there are")
        user.type("!echo mine\r")
        user.see("  mine")  # the output, not the line that was typed
        user.see("allow this command?")
        user.type("y\r")
        user.see("That is all.")
        user.see("stopped")
        user.type("\x04")
        assert user.leave() == 0
    (told,) = [m["content"] for m in messages(folder) if m["role"] == "tool"][:1]
    assert told == "hello"


def test_resumed_run_shows_progress_and_sends_queued_messages_first(
    folder: Path, python: list[str]
) -> None:
    model = script(folder, bash("echo started; sleep 600"))
    with Typist(python, folder, "optimize", "task.py", "--model", model, "-i") as user:
        user.see(": started")
        user.type("use float4\r")
        user.see("queued: use float4")
        user.type("/quit\r")
        assert user.leave() == 130
    rest = script(folder, SUBMIT, name="rest.jsonl")
    with Typist(python, folder, "optimize", "--continue", "--model", rest, "-i") as user:
        user.see("resumed after 1 step and 0:")
        user.see("it was interrupted")
        user.see("last message of the model: I try.")
        user.see("That is all.")
        user.see("stopped")
        user.type("\r")
        user.see("it is finished; type what to try next")
        user.type("/quit\r")
        assert user.leave() == 0
    roles = [(m["role"], m["content"]) for m in messages(folder)]
    assert roles[-3] == ("user", "use float4"), "said once, before the model's next step"


def test_prompt_returns_to_the_user_before_the_end_is_shown() -> None:
    happened: list[object] = []

    class Footer:
        def stop_working(self) -> None:
            happened.append("your turn")

    emit = to_the_end(cast("Any", Footer()), happened.append)
    ended = RunEnded(Stop.NO_GAIN, None, "no gain", None)
    for event in (Phase("timing"), ended):
        emit(event)
    assert happened == [Phase("timing"), "your turn", ended]


def test_finished_run_continues_only_with_a_message(
    cuagent: Cuagent, folder: Path, python: list[str]
) -> None:
    assert cuagent("optimize", "task.py", "--model", script(folder, SUBMIT)).returncode == 0
    again = script(folder, bash("ls"), SUBMIT, name="again.jsonl")
    refused = cuagent("optimize", "--continue", "--model", again, "-p")
    assert refused.returncode == 2
    assert "the run is finished (no gain): see it with cuagent show" in refused.stderr
    assert "cuagent apply" not in refused.stderr, "apply refuses a kernel that is slower"
    spoken = ("optimize", "--continue", "--model", again, "-p", "--message", "try shared memory")
    assert cuagent(*spoken).returncode == 0
    assert ("user", "try shared memory") in [(m["role"], m["content"]) for m in messages(folder)]
    with Typist(python, folder, "optimize", "--continue", "--model", again, "-i") as user:
        user.see("the run is finished (no gain)")
        user.see("type what to try next")
        user.type("try registers\r")
        user.see("> try registers")
        user.see("stopped")
        user.type("\x04")
        assert user.leave() == 0


def test_summary_of_a_resumed_run_counts_earlier_attempts(cuagent: Cuagent, folder: Path) -> None:
    written = {"name": "write", "arguments": {"path": "model_new.py", "text": WRONG}}
    calls = [written, {"name": "verify", "arguments": {}}]
    first = cuagent("optimize", "task.py", "--model", script(folder, {"text": "", "calls": calls}))
    assert first.returncode == 1
    assert "none of 1 was accepted" in first.stdout
    rest = script(folder, SUBMIT, name="rest.jsonl")
    again = cuagent("optimize", "--continue", "--model", rest)
    assert again.returncode == 0, again.stderr
    assert "none of 1 was accepted" in again.stdout
    assert "none was tried" not in again.stdout


def test_a_run_that_failed_is_taken_up_again(cuagent: Cuagent, folder: Path) -> None:
    first = cuagent("optimize", "task.py", "--model", script(folder, bash("ls")), "-p")
    assert first.returncode == 1
    assert first.stdout.startswith("no kernel tried; "), "the result alone"
    assert first.stdout.count("\n") == 1
    assert "● bash  ls" in first.stderr
    assert "continue with: cuagent optimize --resume " in first.stderr
    rest = script(folder, SUBMIT, name="rest.jsonl")
    again = cuagent("optimize", "--continue", "--model", rest, "--output-format", "json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert (result["stop"], result["steps"]) == ("no gain", 2)
    assert len(list((folder / ".cuagent" / "runs").iterdir())) == 1
    (folder / "task.py").write_text(TASK + "# changed\n")
    changed = cuagent("optimize", "--resume", result["run"], "--model", rest)
    assert changed.returncode == 2
    assert "has changed since" in changed.stderr


def test_a_limit_says_how_to_go_on_with_a_wider_one(cuagent: Cuagent, folder: Path) -> None:
    model = script(folder, bash("ls"), SUBMIT)
    done = cuagent("optimize", "task.py", "--model", model, "--max-steps", "1")
    assert done.returncode == 0
    assert "step limit; continue with: cuagent optimize --resume " in done.stderr
    assert done.stderr.rstrip().endswith("--max-steps 2")


LIMITS = {
    "--model-timeout": "20m",
    "--max-steps": "1",
    "--max-cost": "0.5",
    "--max-time": "2h",
    "--max-device-time": "90s",
}


def test_continued_run_keeps_its_limits_until_a_command_gives_others(
    cuagent: Cuagent, folder: Path
) -> None:
    model = script(folder, bash("ls"), SUBMIT)
    options = [word for pair in LIMITS.items() for word in pair]
    done = cuagent("optimize", "task.py", "--model", model, *options)
    assert done.returncode == 0, done.stderr
    wider = cuagent("optimize", "--continue", "--max-steps", "2", "--max-time", "3h")
    assert wider.returncode == 0, wider.stderr
    newest = find_resumable(None, folder / ".cuagent" / "runs")
    assert newest.limits == {
        "model_timeout": 1200.0,
        "max_steps": 2,
        "max_cost": 0.5,
        "max_time": 10800.0,
        "max_device_time": 90.0,
    }
    (log,) = (folder / ".cuagent" / "runs").glob("*/log.jsonl")
    *_, resumed = (r for r in map(json.loads, log.read_text().splitlines()) if "budget" in r)
    budget = {"steps": 2, "cost": 0.5, "seconds": 10800.0, "device_seconds": 90.0}
    assert resumed["budget"] == budget


def test_limits_of_a_run_of_unknown_origin_do_not_hold(cuagent: Cuagent, folder: Path) -> None:
    model = script(folder, bash("ls"), SUBMIT)
    cuagent("optimize", "task.py", "--model", model, "--max-steps", "1", "--max-cost", "1000")
    (log,) = (folder / ".cuagent" / "runs").glob("*/log.jsonl")
    log.write_text(log.read_text().replace("I try.", "I tried."))
    newest = find_resumable(None, folder / ".cuagent" / "runs", trust=True)
    assert newest.limits == {}


@pytest.mark.parametrize(
    ("approval", "origin", "kept"),
    [("ask", "--approval", "ask"), ("yolo", "--approval", None), ("ask", "default", None)],
)
def test_continued_run_asks_if_it_was_to_ask(
    approval: str, origin: str, kept: str | None, cuagent: Cuagent, folder: Path
) -> None:
    model = script(folder, bash("ls"), SUBMIT)
    cuagent("optimize", "task.py", "--model", model, "--max-steps", "1")
    (log,) = (folder / ".cuagent" / "runs").glob("*/log.jsonl")
    first, rest = log.read_text().split("\n", 1)
    session = json.loads(first)
    session["config"]["approval"] = approval
    session["config"]["origins"]["approval"] = origin
    log.write_text(f"{json.dumps(session)}\n{rest}")
    newest = find_resumable(None, folder / ".cuagent" / "runs", trust=True)
    assert newest.approval == kept
    done = cuagent("optimize", "--continue", "--trust", "--model", model)
    if kept:
        assert done.returncode == 2
        assert "--approval ask needs a terminal" in done.stderr


def test_command_needing_approval_is_rejected_without_a_user() -> None:
    assert approved(TOOLS, "yolo") == TOOLS
    guarded = next(tool for tool in approved(TOOLS, "ask") if tool.name == "bash")
    with pytest.raises(ToolError, match="no user is present"):
        guarded.function(None, {"command": "ls"})  # type: ignore[arg-type]


@dataclass
class Guarded:
    """The guarded bash tool with scripted answers of a user; commands do not run."""

    answers: list[str]
    asked: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    clock: list[str] = field(default_factory=list)
    """Stops and starts of the run's clock, and the questions, in order."""

    def __call__(self, command: str) -> str:
        """`ran`, or why not."""
        bash = replace(
            next(tool for tool in TOOLS if tool.name == "bash"),
            function=lambda context, arguments: ToolResult("ran"),
        )
        (guarded,) = approved([bash], "ask", self._ask)
        self._guarded = getattr(self, "_guarded", guarded)
        run = SimpleNamespace(
            notice=self.notices.append,
            stop_clock=lambda: self.clock.append("stop"),
            resume_clock=lambda: self.clock.append("resume"),
        )
        context: Any = SimpleNamespace(run=run)
        try:
            return self._guarded.function(context, {"command": command}).text
        except ToolError as error:
            return str(error)

    def _ask(self, command: str, question: str, context: object) -> str:
        self.asked.append(question)
        self.clock.append("asked")
        return self.answers.pop(0)


def test_always_may_be_for_every_command_of_the_same_programs() -> None:
    guarded = Guarded(["k"])
    assert guarded("cd kernels && g++ -O3 'a b.cpp' 2>&1 | head -5") == "ran"
    kind = "k: always `cd` and `g++` and `head`"
    assert f"y: yes, a: always this command, {kind}, n or a reason: no" in guarded.asked[0]
    assert guarded.notices == [
        "commands that only call `cd` and `g++` and `head` are allowed for the rest of this session"
    ]
    assert guarded("g++ c.cpp; head c.cpp > /dev/null") == "ran"
    assert len(guarded.asked) == 1
    for command in (
        "g++ c.cpp; rm x",
        "g++ $(rm x)",
        "g++ `rm x`",
        "head <(rm x)",
        "g++ c.cpp & rm x",
        "head x\nrm x",
        "CXX=1 g++ c.cpp",
        "head x > y",
        "head x 2>&1>y",
        "head 'x",
        "xargs head",
    ):
        guarded.answers.append("no, thanks")
        assert guarded(command) == "the user does not allow this command: no, thanks", command


def test_always_allows_exactly_one_command() -> None:
    guarded = Guarded(["a", "k"])
    command = "for i in 1 2; do echo $i > x; done"
    assert guarded(command) == "ran"
    assert "k: always" not in guarded.asked[0], "it has no kind"
    assert guarded(command) == "ran"
    assert guarded(command + "; rm x") == "the user does not allow this command: k"


def test_time_of_a_question_does_not_count_as_work() -> None:
    guarded = Guarded(["y", "n"])
    guarded("ls")
    guarded("ls")
    assert guarded.clock == ["stop", "asked", "resume"] * 2


def test_what_is_allowed_ends_with_the_session() -> None:
    assert Guarded(["a"])("ls") == "ran"
    assert "does not allow" in Guarded(["n"])("ls")


def test_interactive_mode_needs_a_terminal(cuagent: Cuagent, folder: Path) -> None:
    model = script(folder, SUBMIT)
    for flags in (["-i"], ["--approval", "ask"]):
        done = cuagent("optimize", "task.py", "--model", model, *flags)
        assert done.returncode == 2
        assert "terminal" in done.stderr


def test_cost_limit_is_refused_for_a_model_without_a_price(cuagent: Cuagent, folder: Path) -> None:
    asked = ("optimize", "task.py", "--model", "ollama:some-model", "--max-cost", "1")
    done = cuagent(*asked)
    assert done.returncode == 2
    assert "no price is known for ollama:some-model" in done.stderr
    assert not (folder / ".cuagent").exists()


class FakeView(list[Any]):
    """Records the events shown, and pauses."""

    def __call__(self, event: object) -> None:
        self.append(event)

    def pause(self, *, finished: bool = False, queued: bool = False) -> None:
        self.append("pause")


def test_compaction_says_what_it_does_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    view = FakeView()
    monkeypatch.setattr(slash, "compact", lambda *_: view.append("compacted") or True)
    monkeypatch.setattr(slash, "is_finished", lambda _: False)
    run = SimpleNamespace(cancelled=threading.Event(), emit=None, cancel=None, inbox=SimpleQueue())
    run.spent = lambda: Spent(3, 60.0, 10, 2, None)
    prompt = SimpleNamespace(working=lambda _: nullcontext())
    session: Any = SimpleNamespace(
        run=run, view=view, prompt=prompt, model=None, say=lambda *_: None
    )
    assert slash.run_command(session, "/compact")
    assert view == [Phase("summarizing the conversation"), "compacted", run.spent(), "pause"]


def test_unknown_model_of_a_slash_command_names_no_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise Refused("--model nosuch:x: unknown model 'nosuch:x'")

    said: list[str] = []
    monkeypatch.setattr(slash, "open_model", refused)
    session: Any = SimpleNamespace(
        run=SimpleNamespace(task=None), settings=None, say=lambda text, *_: said.append(text)
    )
    assert slash.run_command(session, "/model nosuch:x")
    assert said[-1] == "nosuch:x: unknown model 'nosuch:x'"
