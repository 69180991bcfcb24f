"""Whether a recorded verdict holds: judged again on its own seeds, figure by figure.

What one machine computes twice comes out the same to the last digit, so that each figure of the
record must. Two things excuse a difference, within a factor: another machine, compiler or torch,
and an attempt whose answers vary by themselves, which shows when it is judged thrice. Timings are
held against their own raw samples (`audit/recount.py`). Not compared: what the attempt printed,
and how long things took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuagent.record.contained_files import RecordError
from cuagent.record.evidence import EvidenceError, library_hashes, verifier_digest
from cuagent.record.revive import attempt_of, revive

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.task import Task
    from cuagent.timing import Effort, Timing
    from cuagent.verify import Referee, Verdict
    from cuagent.verify.referee import Isolation

AGAIN = 2
"""So often it is judged once more, where a figure did not come out the same."""


@dataclass(frozen=True)
class Audit:
    """What came of judging again."""

    said: str
    """The recorded reason."""
    verdict: Verdict
    """As it is now."""
    contrary: tuple[str, ...]
    """What is recorded and does not come out again, a line each."""
    circumstances: tuple[str, ...]
    """What is other than it was, and need not matter (versions, tier), a line each."""

    @property
    def holds(self) -> bool:
        return not self.contrary

    @property
    def line(self) -> str:
        """The answer in one line."""
        if self.holds:
            what = f"{len(self.verdict.draws)} draws came out as recorded"
            return f"holds: {self.said}; {what}"
        count = len(self.contrary)
        what = "one thing" if count == 1 else f"{count} things"
        return f"does not hold: {self.said}; {what} did not come out as recorded"


@dataclass(frozen=True)
class Recorded:
    """An evidence file, taken apart."""

    data: Mapping[str, Any]
    task: Task
    attempt: Attempt
    verdict: Verdict
    timing: Timing | None


def audit(
    data: Mapping[str, Any], isolation: Isolation = "auto", effort: Effort | None = None
) -> Audit:
    """Judge again from the content of an evidence file; time again where `effort` is given.

    Raises EvidenceError, TaskError, ForkServerError, OracleLost.
    """
    from cuagent.build import build
    from cuagent.verify import Referee

    recorded = take_apart(data)
    made = build(recorded.attempt, recorded.task.device)
    with Referee(recorded.task, isolation) as referee:
        found = compare(recorded, made, judge_again(recorded, made, referee))
        if effort is None or not found.verdict.accepted:
            return found
        timed = _timed_again(recorded, made, referee, effort)
    return replace(found, circumstances=(*found.circumstances, *timed))


def take_apart(data: Mapping[str, Any]) -> Recorded:
    """Raises EvidenceError."""
    from cuagent.attempt import AttemptError
    from cuagent.timing import Timing
    from cuagent.verify import Verdict
    from cuagent.worker.arms import task_from_json

    try:
        recorded = Recorded(
            data,
            task_from_json(dict(data["task"])),
            attempt_of(data["attempt"]),
            revive(Verdict, data["verdict"]),
            revive(Timing | None, data["timing"]),
        )
        # All that is held against it later, once, so that what is no record shows here.
        _forged(recorded)
        _elsewhere(data, recorded.verdict, recorded.verdict)
        _libraries(data)
        _require_seeds(recorded.verdict)
        return recorded
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        raise EvidenceError(
            f"the evidence is not whole: {type(error).__name__} {error!s:.200}"
        ) from error
    except (AttemptError, RecordError, RecursionError) as error:
        raise EvidenceError(f"the evidence is not whole: {error!s:.200}") from error


def _require_seeds(said: Verdict) -> None:
    """Raise ValueError for seeds that no generator takes."""
    for seed in (*said.seeds, *(draw.seed for draw in said.draws)):
        if not 0 <= seed < 1 << 63:
            raise ValueError("a seed is not in 0 to 2**63 - 1")


def judge_again(recorded: Recorded, made: Build, referee: Referee) -> list[Verdict]:
    """On the recorded seeds: once, and thrice where something did not come out the same."""
    from cuagent.audit.figures import disagreements
    from cuagent.verdict import Reason
    from cuagent.verify.sanitize import gated

    found: list[Verdict] = []
    while len(found) <= AGAIN:
        verdict = referee.verify(recorded.attempt, made, again=recorded.verdict)
        if recorded.verdict.reason is Reason.MEMORY_FAULT:
            verdict = gated(referee, recorded.attempt, made, verdict)
        found.append(verdict)
        nobodys = verdict.reason is Reason.INFRASTRUCTURE
        if nobodys or not disagreements(recorded.verdict, found[0], coarse=False):
            break
    return found


def _timed_again(recorded: Recorded, made: Build, referee: Referee, effort: Effort) -> list[str]:
    """Ratios of now beside those of the record: no contradiction, whatever they are."""
    from cuagent.measure.timing.timer import time_arms

    then = recorded.timing.ratios if recorded.timing is not None else {}
    timing = time_arms(referee, recorded.attempt, made, tuple(then) or ("eager",), effort)
    return [
        f"timed again: {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] over {name}"
        + (f", recorded {old.value:.2f}x [{old.low:.2f}, {old.high:.2f}]" if old else "")
        for name, ratio in timing.ratios.items()
        for old in (then.get(name),)
    ]


def compare(recorded: Recorded, made: Build, found: Sequence[Verdict]) -> Audit:
    """Hold the record against what judging again gave."""
    from cuagent.audit.figures import disagreements, of_timing

    said = recorded.verdict
    elsewhere = _elsewhere(recorded.data, said, found[0])
    varies = any(disagreements(found[0], other, coarse=False) for other in found[1:])
    coarse = bool(elsewhere) or varies
    lists = [disagreements(said, verdict, coarse=coarse) for verdict in found]
    verdict, figures = min(zip(found, lists, strict=True), key=lambda pair: len(pair[1]))
    contrary = [*_forged(recorded), *figures, *_building(recorded.data, made)]
    contrary += _timing(recorded)
    circumstances = [*elsewhere, *_tier(said, verdict)]
    if varies:
        circumstances.append("its answers vary from run to run; figures were compared coarsely")
    elif elsewhere:
        circumstances.append("figures were compared coarsely, as things are other than they were")
    if verdict.accepted and of_timing(said):
        circumstances.append("it was refused while timed, which is not repeated; it is right")
    return Audit(said.reason.value, verdict, tuple(contrary), tuple(circumstances))


def _forged(recorded: Recorded) -> list[str]:
    """Where the digests do not fit the texts."""
    data, said = recorded.data, recorded.verdict
    texts = {
        "task": (recorded.task.digest, data.get("task_digest"), said.task),
        "attempt": (recorded.attempt.digest, data.get("attempt_digest"), said.attempt),
    }
    return [
        f"the {name}'s text is not the one of the verdict"
        for name, digests in texts.items()
        if len(set(digests)) > 1
    ]


def _elsewhere(data: Mapping[str, Any], said: Verdict, found: Verdict) -> list[str]:
    """What decides figures and is not as it was."""
    from cuagent.build import versions

    differ = []
    if data.get("verifier") != verifier_digest():
        differ.append("the verifier's own sources are other ones")
    now = found.versions | (versions() if data.get("compilers") else {})
    then = said.versions | data.get("compilers", {})
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            differ.append(f"{name}: recorded {then.get(name)}, now {now.get(name)}")
    return differ


def _tier(said: Verdict, found: Verdict) -> list[str]:
    return [] if said.tier == found.tier else [f"isolation: recorded {said.tier}, now {found.tier}"]


def _building(data: Mapping[str, Any], made: Build) -> list[str]:
    """Libraries that are not those of the record; other compilers make other ones.

    g++ gives the same bytes for the same text; nvcc is not known to.
    """
    from cuagent.build import versions

    then = _libraries(data)
    now = {one["source"]: one for one in library_hashes(made)}
    lines = [f"build: {name} is in one build only" for name in sorted(then.keys() ^ now.keys())]
    if data.get("compilers") != versions():
        return lines
    return lines + [
        f"build: {name} has another {part} than recorded"
        for name in sorted(then.keys() & now.keys())
        for part in ("key", "sha256")
        if then[name].get(part) != now[name][part] and (part == "key" or name.endswith(".cpp"))
    ]


def _libraries(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {str(one["source"]): dict(one) for one in data.get("build", [])}


def _timing(recorded: Recorded) -> list[str]:
    """Where the recorded timing fits neither its samples nor the verdict."""
    from cuagent.audit.recount import contradictions

    timing, said = recorded.timing, recorded.verdict
    if timing is None:
        return []
    found = contradictions(timing, recorded.task.device)
    arm = timing.arm("candidate")
    if said.accepted and (timing.refused or arm is None or arm.failed):
        found.append("timing: refused there, and accepted in the verdict")
    found += [
        f"timing: {name} is {version} there and {said.versions.get(name)} in the verdict"
        for name, version in timing.versions.items()
        if version != said.versions.get(name)
    ]
    return found
