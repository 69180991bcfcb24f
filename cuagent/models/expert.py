"""Drive the agent's loop with the offline expert, which implements the `Model` protocol.

The expert reads the state of a run from the conversation only (`expert.search.progress`), so an
interrupted run resumes at the same point. It follows no instructions in the conversation.
`expert.search.planner` chooses the next candidate by timings at quick effort. Only a timing at
record effort decides if there is a gain, unless a candidate is clearly slower than eager.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuagent.expert.notes import shortened
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import Bounds, Outcome, best_of
from cuagent.expert.search.planner import Proposal, propose
from cuagent.expert.search.progress import Progress, read_progress
from cuagent.expert.search.tuning import recalled, remember
from cuagent.models.model import Finish, Message, OnText, Reply, ToolCall, ToolSpec
from cuagent.task import Device
from cuagent.worker.sleeping_threads import let_threads_sleep

if TYPE_CHECKING:
    from pathlib import Path

    from cuagent.expert.candidate import Candidate
    from cuagent.expert.capture.subject import Subject
    from cuagent.task import Task

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a tool call."""
MAX_FAILURES = 2
"""The run stops after this many tool calls in a row that failed for reasons other than the
candidate."""
POSSIBLE_SHARES = (0.0, 0.5, 1.0)
"""Shares of a candidate's time in its own kernels, tried in place of the unknown real one. If the
planner (`outcomes.OWN_SHARE`) chooses the same for all, no profile is needed."""
PRELOADED = (
    "torch.export._trace",
    "cuagent.expert.capture.subject",
    "cuagent.expert.search.choices",
)
"""Modules whose import takes most of the time until the first candidate."""
PLAN_NOTES, SUBMITTED_NOTES = 10, 4
"""Largest numbers of lines on a candidate in a plan, and in the message of `submit`."""
BASELINES = {"eager": "eager", "compile": "torch.compile"}


class ExpertModel:
    """The `Model` protocol implemented by the expert: no language model, key or network is
    needed."""

    name = "expert"

    def __init__(self, task: Task, tuning: Path | None = None) -> None:
        """Create the expert for a task.

        `tuning` is the folder with results of earlier runs; None to use and store none.
        """
        self._task, self._tuning = task, tuning
        self.explains = True
        """True to profile also for the user of `optimize`: the reference, and a candidate that is
        no clear gain. False to profile only if the choice of the next candidate depends on it."""
        self.kernels_only = False
        """True if no free option can be the result: candidates are tried although one is optimal,
        and none leaves work to torch.compile."""
        self._memory: Memory | None = None
        self._subject: Subject | None = None
        self._problem = ""
        self._proposals: dict[tuple[tuple[bool, ...], int, bool, bool], Proposal | None] = {}
        self._preparing = threading.RLock()
        """Mutex of the capture, which may begin in another thread."""

    def preload(self) -> None:
        """Import what `prepare` needs, three seconds of torch's code. Another thread may call it
        while processes open, because it uses no device and runs no code of the task. A failure is
        left to `prepare`."""
        with suppress(ImportError):
            for name in PRELOADED:
                import_module(name)

    def prepare(self) -> None:
        """Capture the module's graph and plan the first candidate now, which takes seconds, so that
        the first query is quick.

        Another thread may call it while the task is examined; a later call waits for it.
        """
        with self._preparing:
            self._prepare()

    def _prepare(self) -> None:
        from cuagent.expert.options import Options
        from cuagent.expert.search.choices import candidate_of

        subject = self._open()
        made = candidate_of(subject, Options()) if subject else None
        if subject and made and made.convolutions and subject.target.tf32_convolutions:
            # The profile of the reference will tell which one is tried.
            candidate_of(subject, Options(tf32_few_channels=True))

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        """Return a reply with the tool calls of the next step. Any result of the last calls is
        handled."""
        tool_names = {tool.name for tool in tools}
        recorded = self._memory = _recorded(messages)
        progress = read_progress(messages, self._proposal, kernels_only=self.kernels_only)
        text, calls = self._next(progress, tool_names)
        for piece in re.findall(r"\S*\s|\S+", text):
            on_text(piece, "text")
        turn = sum(1 for m in messages if m.role == "assistant")
        tool_calls = tuple(
            ToolCall(f"expert_{turn}_{k}", name, json.dumps(arguments))
            for k, (name, arguments) in enumerate(calls)
            if not tool_names or name in tool_names
        )
        finish = Finish.TOOL_CALLS if tool_calls else Finish.STOP
        # The log keeps the memory that the run began with, because a later run may change the file.
        data = {"tuning": self._memory.to_json()} if self._memory and recorded is None else {}
        message = Message("assistant", text, tool_calls, sampled=True, data=data)
        return Reply(message, finish, cost=0.0)

    def _proposal(self, outcomes: Sequence[Outcome], bounds: Bounds) -> Proposal | None:
        # The planner is deterministic, and outcomes and profiles are only ever added, so their
        # numbers identify the planner's input; `submit` may refuse an outcome later.
        profiled = sum(o.own_share is not None for o in outcomes)
        accepted = tuple(o.accepted for o in outcomes)
        key = accepted, profiled, bounds.in_tf32, bounds.is_exact
        if key not in self._proposals:
            subject = self._open()
            if subject and self._memory is None:
                self._memory = recalled(subject, self._tuning)
            memory = self._memory or Memory()
            found = propose(subject, outcomes, bounds, memory) if subject else None
            self._proposals[key] = found
        return self._proposals[key]

    def _open(self) -> Subject | None:
        """Return the captured task, capturing it if necessary.

        If it cannot be captured, None is returned and `_problem` says why.
        """
        from cuagent.expert.capture.export import CaptureError
        from cuagent.expert.capture.subject import open_subject

        with self._preparing:
            if self._subject is None and not self._problem:
                if self._task.device is Device.CPU:
                    let_threads_sleep()  # rungs compile and open meanwhile
                try:
                    self._subject = open_subject(self._task)
                except CaptureError as error:
                    self._problem = str(error)
        return self._subject

    def _next(self, progress: Progress, tool_names: set[str]) -> tuple[str, list[Call]]:
        if progress.bounds.rung_is_optimal and not progress.outcomes:
            return _give_up(progress, _optimal_text(progress.bounds))
        may_profile = "profile" in tool_names and not progress.profiled and not progress.outcomes
        if may_profile and (self.explains or self._choice_depends_on_reference(progress.bounds)):
            text = f"I profile {self._task.name} before I change anything."
            return text, [("profile", {"what": "reference"})]
        if self._open() is None:
            return _give_up(progress, f"no gain: the module cannot be captured ({self._problem})")
        if progress.failures >= MAX_FAILURES:
            return self._finish(progress)
        if progress.compiled:
            state = "verify failed, so I repeat it:" if progress.failures else "It compiles. Next:"
            best = best_of(progress.outcomes)
            if best is None or not best.ratios or progress.failures:
                return f"{state} verify it and time it against the baselines.", [("verify", {})]
            text = f"{state} time it, and verify it unless attempt {best.attempt} is faster."
            return text, [("verify", {"only_if_faster": True})]
        proposal = self._proposal(progress.outcomes, progress.bounds)
        if proposal is None or (progress.refused and best_of(progress.outcomes) is not None):
            return self._finish(progress)
        last = progress.outcomes[-1] if progress.outcomes else None
        if last and self._profiles(last, progress, tool_names):
            text = f"{_outcome_text(last)} I profile it."
            return text, [("profile", {"what": "candidate"})]
        return _try_proposal(proposal, progress)

    def _profiles(self, last: Outcome, progress: Progress, tool_names: set[str]) -> bool:
        """Return True if the last candidate should be profiled now; a run profiles at most one."""
        if not last.accepted or progress.candidate_profiled or "profile" not in tool_names:
            return False
        shown = self.explains and not last.is_clear_gain
        return shown or self._choice_depends_on_profile(progress)

    def _choice_depends_on_reference(self, bounds: Bounds) -> bool:
        """Return True if the first candidate depends on which of the reference's kernels run in
        TF32. The error of a network tells only that some do."""
        if not bounds.in_tf32:
            return False
        texts = set()
        for in_tf32 in (True, False):
            made = self._proposal((), replace(bounds, in_tf32=in_tf32))
            texts.add(None if made is None else tuple(sorted(made.candidate.files.items())))
        return len(texts) > 1

    def _choice_depends_on_profile(self, progress: Progress) -> bool:
        """Return True if the choice of the next candidate depends on the share of the last one's
        time that its own kernels take."""
        *before, last = progress.outcomes
        texts = set()
        for share in POSSIBLE_SHARES:
            outcomes = [*before, replace(last, own_share=share)]
            subject, memory = self._open(), self._memory or Memory()
            found = propose(subject, outcomes, progress.bounds, memory) if subject else None
            texts.add(None if found is None else tuple(sorted(found.candidate.files.items())))
        return len(texts) > 1

    def _why_no_candidate(self) -> str:
        nodes = self._subject.captured.nodes if self._subject else ()
        dtypes = {str(getattr(node.meta.get("val"), "dtype", "")) for node in nodes}
        if "torch.float64" in dtypes:
            return "it computes in float64, for which I write no kernels"
        return "all its work is in library calls, which I cannot make faster"

    def _finish(self, progress: Progress) -> tuple[str, list[Call]]:
        if self._subject:
            remember(self._subject, self._tuning, progress.outcomes)
        best = best_of(progress.outcomes)
        failure = f"I stop, because a tool failed ({progress.failure}). "
        prefix = failure if progress.failures else ""
        if best is None or best.attempt is None:
            if progress.failures:
                why = f"no result: the tools failed {progress.failures} times ({progress.failure})"
            elif progress.outcomes:
                why = f"no gain: none of {len(progress.outcomes)} candidates was accepted"
            else:
                why = f"no gain: {self._why_no_candidate()}"
            return _give_up(progress, why)
        figures = _figures(best)
        if best.is_slower or best.is_slower_than(progress.bounds.rung):
            text, message = f"No gain: the best is {figures}.", f"no gain: {figures}"
        else:
            text = f"Attempt {best.attempt} is the best: {figures}. I submit it."
            message = "; ".join([figures, *shortened(best.candidate.notes, SUBMITTED_NOTES)])
        return prefix + text, [("submit", {"attempt": best.attempt, "message": message})]


def _recorded(messages: Sequence[Message]) -> Memory | None:
    """Return the tuning memory that this run began with; None before its first candidate."""
    found = next((m.data["tuning"] for m in messages if "tuning" in m.data), None)
    if found is not None:
        return Memory.from_json(found)
    begun = any(call.name == "compile" for m in messages for call in m.tool_calls)
    return Memory() if begun else None


def _try_proposal(proposal: Proposal, progress: Progress) -> tuple[str, list[Call]]:
    """Return a reply's text and tool calls that write the proposed candidate and compile it."""
    candidate, last = proposal.candidate, progress.outcomes[-1] if progress.outcomes else None
    lines = [_outcome_text(last)] if last else []
    lines.append(f"{'Next' if last else 'My plan'}: {proposal.why}.")
    earlier = last.candidate.notes if last else ()
    notes = [note for note in candidate.notes if note not in earlier]
    lines += [f"- {note}" for note in shortened(notes, PLAN_NOTES)]
    return "\n".join(lines), [*_changes(progress, candidate), ("compile", {})]


def _changes(progress: Progress, candidate: Candidate) -> list[Call]:
    """Return the tool calls that change the work folder to the candidate's files.

    They remove files that are not part of the candidate, and write those that differ.
    """
    calls: list[Call] = []
    stale = sorted(progress.files.keys() - candidate.files.keys())
    if stale:
        calls.append(("bash", {"command": f"rm {' '.join(stale)}"}))
    for path, text in sorted(candidate.files.items()):
        if path in progress.unread:
            calls.append(("read", {"path": path, "lines": 1}))
        if progress.files.get(path) != text:
            calls.append(("write", {"path": path, "text": text}))
    return calls


def _give_up(progress: Progress, why: str) -> tuple[str, list[Call]]:
    if progress.empty_submit:
        return f"I stop: {why}.", []
    return f"{why[0].upper()}{why[1:]}.", [("submit", {"message": why})]


def _optimal_text(bounds: Bounds) -> str:
    share = bounds.floor / bounds.rung_seconds
    rung = BASELINES.get(bounds.rung, bounds.rung)
    return (
        f"no kernel can be a clear gain: {rung} runs at {share:.0%} of the speed at which the "
        "memory can move the inputs and outputs"
    )


def _outcome_text(outcome: Outcome) -> str:
    if outcome.accepted:
        return f"Attempt {outcome.attempt} is correct: {_figures(outcome)}."
    return f"The last candidate was rejected: {outcome.reason}."


def _figures(outcome: Outcome) -> str:
    """Format an attempt's speedups: `6.41x over eager, 1.02x over torch.compile (0.91 to 1.20)`.

    An interval is shown only if it includes 1.
    """
    parts = []
    for name, ratio in outcome.ratios.items():
        limits = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low <= 1 < ratio.high else ""
        parts.append(f"{ratio.value:.2f}x over {BASELINES.get(name, name)}{limits}")
    return ", ".join(parts) or "not timed"
