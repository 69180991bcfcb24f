"""The offline expert as a model: it drives the agent's loop through the tools, as others do.

What it knows of a run it reads from the conversation alone: each query replays the messages to find
which candidates were tried and what came of them, so that an interrupted run resumes where it
stood. The compiler behind it is `cuagent.expert`. It takes no instructions from the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuagent.expert.planner import Outcome, Proposal, best_of, propose
from cuagent.models.model import Finish, Message, OnText, Reply, ToolCall, ToolSpec

if TYPE_CHECKING:
    from cuagent.expert.candidate import Subject
    from cuagent.task import Task

Call = tuple[str, dict[str, Any]]
"""A tool's name and arguments."""


@dataclass
class _Story:
    """What the conversation tells."""

    profiled: bool = False
    looked_at_candidate: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    compiled: bool = False
    """The newest candidate was compiled and waits for its verdict."""
    refused: set[int] = field(default_factory=set)
    """Attempts that `submit` did not accept."""
    empty_submit: bool = False
    """`submit` without an attempt was tried."""


class ExpertModel:
    """`cuagent.models.model.Model` without a language model, a key or a network."""

    name = "expert"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._subject: Subject | None = None
        self._problem = ""
        self._proposals: dict[int, Proposal | None] = {}

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        """The next step of the plan; never fails on what a tool answered."""
        known = {tool.name for tool in tools}
        story = self._read(messages)
        text, calls = self._next(story, known)
        for piece in _pieces(text):
            on_text(piece, "text")
        turn = sum(1 for m in messages if m.role == "assistant")
        made = tuple(
            ToolCall(f"expert_{turn}_{k}", name, json.dumps(arguments))
            for k, (name, arguments) in enumerate(calls)
            if not known or name in known
        )
        finish = Finish.TOOL_CALLS if made else Finish.STOP
        return Reply(Message("assistant", text, made, sampled=True), finish, cost=0.0)

    # Reading the conversation.

    def _read(self, messages: Sequence[Message]) -> _Story:
        story = _Story()
        results = {m.tool_call_id: m for m in messages if m.role == "tool"}
        for message in messages:
            for call in message.tool_calls if message.role == "assistant" else ():
                result = results.get(call.id)
                if result is not None:
                    self._take(story, call, result)
        return story

    def _take(self, story: _Story, call: ToolCall, result: Message) -> None:
        data = result.data
        match call.name:
            case "profile":
                if story.profiled and story.outcomes:
                    story.looked_at_candidate = True
                story.profiled = True
            case "compile":
                story.compiled = bool(data.get("ok"))
                if not story.compiled:
                    broken = tuple(str(d.get("file", "")) for d in data.get("diagnostics", ()))
                    self._conclude(story, False, "build failed", broken=broken)
            case "verify":
                story.compiled = False
                self._conclude(
                    story,
                    bool(data.get("accepted")),
                    str(data.get("reason", "no verdict")),
                    data.get("attempt"),
                    _ratios(data.get("ratios", {})),
                )
            case "submit" if not data.get("ended"):
                attempt = _arguments(call).get("attempt")
                if isinstance(attempt, int):
                    story.refused.add(attempt)
                else:
                    story.empty_submit = True

    def _conclude(
        self,
        story: _Story,
        accepted: bool,
        reason: str,
        attempt: int | None = None,
        ratios: Mapping[str, float] | None = None,
        broken: tuple[str, ...] = (),
    ) -> None:
        """Put down what came of the candidate that was on the table."""
        proposal = self._proposal(story.outcomes)
        if proposal is not None:
            made = Outcome(proposal.candidate, accepted, reason, attempt, ratios or {}, broken)
            story.outcomes.append(made)

    def _proposal(self, outcomes: Sequence[Outcome]) -> Proposal | None:
        # The planner is deterministic and the outcomes only grow, so their count is a key.
        if len(outcomes) not in self._proposals:
            subject = self._open()
            self._proposals[len(outcomes)] = propose(subject, outcomes) if subject else None
        return self._proposals[len(outcomes)]

    def _open(self) -> Subject | None:
        """The captured task, once; None with `_problem` set where it cannot be captured."""
        from cuagent.expert.capture import CaptureError
        from cuagent.expert.subject import open_subject

        if self._subject is None and not self._problem:
            try:
                self._subject = open_subject(self._task)
            except CaptureError as error:
                self._problem = str(error)
        return self._subject

    # Deciding.

    def _next(self, story: _Story, known: set[str]) -> tuple[str, list[Call]]:
        if not story.profiled and not story.outcomes:
            text = f"I look at where the time of {self._task.name} goes before I change anything."
            if "profile" in known:
                return text, [("profile", {"what": "reference"})]
        if self._open() is None:
            why = f"no gain: the module cannot be captured ({self._problem})"
            return self._give_up(story, why)
        if story.compiled:
            return "It compiles. Now the verdict, and the time against both baselines.", [
                ("verify", {})
            ]
        last = story.outcomes[-1] if story.outcomes else None
        if last and last.accepted and not story.looked_at_candidate and "profile" in known:
            text = f"{_say(last)} Where does its time go now?"
            return text, [("profile", {"what": "candidate"})]
        proposal = self._proposal(story.outcomes)
        if proposal is not None and not story.refused:
            return self._try(proposal, last, known)
        return self._finish(story)

    def _try(
        self, proposal: Proposal, last: Outcome | None, known: set[str]
    ) -> tuple[str, list[Call]]:
        candidate = proposal.candidate
        lines = [_say(last)] if last else []
        lines.append(f"{'Next' if last else 'My plan'}: {proposal.why}.")
        lines += [f"- {note}" for note in candidate.notes]
        calls: list[Call] = []
        if last and "bash" in known:
            # A kernel that the new candidate does not use would be built and judged with it.
            calls.append(("bash", {"command": "rm -rf kernels"}))
        files = sorted(candidate.files.items())
        calls += [("write", {"path": path, "text": text}) for path, text in files]
        return "\n".join(lines), [*calls, ("compile", {})]

    def _finish(self, story: _Story) -> tuple[str, list[Call]]:
        standing = [o for o in story.outcomes if o.attempt not in story.refused]
        best = best_of(standing)
        if best is None or best.attempt is None:
            tried = len(story.outcomes)
            why = (
                f"no gain: none of {tried} candidates was accepted"
                if tried
                else "no gain: all its work is in library calls that I do not know how to better"
            )
            return self._give_up(story, why)
        if best.gain > 1:
            text = f"Attempt {best.attempt} is the best: {_figures(best)}. I submit it."
            message = f"{_figures(best)}; " + "; ".join(best.candidate.notes)
        else:
            text = f"No gain: the best of {len(story.outcomes)} is {_figures(best)}."
            message = f"no gain: {_figures(best)}"
        return text, [("submit", {"attempt": best.attempt, "message": message})]

    def _give_up(self, story: _Story, why: str) -> tuple[str, list[Call]]:
        if story.empty_submit:
            return f"I stop: {why}.", []
        return f"{why[0].upper()}{why[1:]}.", [("submit", {"message": why})]


def _say(outcome: Outcome) -> str:
    if outcome.accepted:
        return f"Attempt {outcome.attempt} is right: {_figures(outcome)}."
    return f"That one was refused: {outcome.reason}."


def _figures(outcome: Outcome) -> str:
    names = {"eager": "eager", "compile": "torch.compile"}
    parts = [f"{value:.2f}x over {names.get(k, k)}" for k, value in outcome.ratios.items()]
    return ", ".join(parts) or "not timed"


def _ratios(data: Any) -> dict[str, float]:
    """The middle values of the ratios, whatever else stands there."""
    found = {}
    for name, ratio in data.items() if isinstance(data, Mapping) else ():
        value = ratio.get("value") if isinstance(ratio, Mapping) else ratio
        if isinstance(value, int | float):
            found[str(name)] = float(value)
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _pieces(text: str) -> Iterator[str]:
    """Words with what follows them, as a language model would stream them."""
    word = ""
    for character in text:
        word += character
        if character.isspace():
            yield word
            word = ""
    if word:
        yield word
