"""The offline expert as a model: it drives the agent's loop through the tools, as others do.

What it knows of a run it reads from the conversation alone (`cuagent.expert.story`), so that an
interrupted run resumes where it stood; what to try next is `cuagent.expert.planner`. It takes no
instructions from the conversation. Its figures in the loop are quick looks: they choose among
candidates, but whether there is a gain only the record run decides, unless it is plain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuagent.expert.planner import Outcome, Proposal, best_of, propose
from cuagent.expert.story import Story, read_story
from cuagent.models.model import Finish, Message, OnText, Reply, ToolCall, ToolSpec

if TYPE_CHECKING:
    from cuagent.expert.candidate import Candidate, Subject
    from cuagent.task import Task

Call = tuple[str, dict[str, Any]]
"""A tool's name and arguments."""
MOST_FAILURES = 2
"""Calls in a row that fail inside, without a word on the candidate, after which we stop."""
BASELINES = {"eager": "eager", "compile": "torch.compile"}


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
        text, calls = self._next(read_story(messages, self._proposal), known)
        for piece in re.findall(r"\S*\s|\S+", text):
            on_text(piece, "text")
        turn = sum(1 for m in messages if m.role == "assistant")
        made = tuple(
            ToolCall(f"expert_{turn}_{k}", name, json.dumps(arguments))
            for k, (name, arguments) in enumerate(calls)
            if not known or name in known
        )
        finish = Finish.TOOL_CALLS if made else Finish.STOP
        return Reply(Message("assistant", text, made, sampled=True), finish, cost=0.0)

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

    def _next(self, story: Story, known: set[str]) -> tuple[str, list[Call]]:
        if not story.profiled and not story.outcomes and "profile" in known:
            text = f"I look at where the time of {self._task.name} goes before I change anything."
            return text, [("profile", {"what": "reference"})]
        if self._open() is None:
            return _give_up(story, f"no gain: the module cannot be captured ({self._problem})")
        if story.failures >= MOST_FAILURES:
            return self._finish(story)
        if story.compiled:
            again = "No verdict came; once more." if story.failures else "It compiles."
            return f"{again} Now the verdict, and the time against the baselines.", [("verify", {})]
        last = story.outcomes[-1] if story.outcomes else None
        if last and last.accepted and not story.looked_at_candidate and "profile" in known:
            text = f"{_say(last)} Where does its time go now?"
            return text, [("profile", {"what": "candidate"})]
        proposal = self._proposal(story.outcomes)
        if proposal is not None and not story.refused:
            return _try(proposal, story)
        return self._finish(story)

    def _finish(self, story: Story) -> tuple[str, list[Call]]:
        best = best_of([o for o in story.outcomes if o.attempt not in story.refused])
        cut_short = f"I get no further ({story.failure}). " if story.failures else ""
        if best is None or best.attempt is None:
            if story.failures:
                why = f"no result: the tools failed {story.failures} times ({story.failure})"
            elif story.outcomes:
                why = f"no gain: none of {len(story.outcomes)} candidates was accepted"
            else:
                why = "no gain: all its work is in library calls that I cannot better"
            return _give_up(story, why)
        figures = _figures(best)
        if best.is_slower:
            text, message = f"No gain: the best is {figures}.", f"no gain: {figures}"
        else:
            text = f"Attempt {best.attempt} is the best: {figures}. I submit it."
            message = "; ".join([figures, *best.candidate.notes])
        return cut_short + text, [("submit", {"attempt": best.attempt, "message": message})]


def _try(proposal: Proposal, story: Story) -> tuple[str, list[Call]]:
    """Make the work folder hold the candidate by the fewest changes, and compile it."""
    candidate, last = proposal.candidate, story.outcomes[-1] if story.outcomes else None
    lines = [_say(last)] if last else []
    lines.append(f"{'Next' if last else 'My plan'}: {proposal.why}.")
    said = last.candidate.notes if last else ()
    lines += [f"- {note}" for note in candidate.notes if note not in said]
    return "\n".join(lines), [*_changes(story, candidate), ("compile", {})]


def _changes(story: Story, candidate: Candidate) -> list[Call]:
    """Remove what would be built and judged with the candidate, write what differs."""
    calls: list[Call] = []
    stale = sorted(story.files.keys() - candidate.files.keys())
    if stale:
        calls.append(("bash", {"command": f"rm {' '.join(stale)}"}))
    for path, text in sorted(candidate.files.items()):
        if path in story.unread:
            calls.append(("read", {"path": path, "lines": 1}))
        if story.files.get(path) != text:
            calls.append(("write", {"path": path, "text": text}))
    return calls


def _give_up(story: Story, why: str) -> tuple[str, list[Call]]:
    if story.empty_submit:
        return f"I stop: {why}.", []
    return f"{why[0].upper()}{why[1:]}.", [("submit", {"message": why})]


def _say(outcome: Outcome) -> str:
    if outcome.accepted:
        return f"Attempt {outcome.attempt} is right: {_figures(outcome)}."
    return f"That one was refused: {outcome.reason}."


def _figures(outcome: Outcome) -> str:
    """`6.41x over eager, 1.02x over torch.compile (0.91 to 1.20)`: limits where they hold 1."""
    parts = []
    for name, ratio in outcome.ratios.items():
        limits = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low <= 1 < ratio.high else ""
        parts.append(f"{ratio.value:.2f}x over {BASELINES.get(name, name)}{limits}")
    return ", ".join(parts) or "not timed"
