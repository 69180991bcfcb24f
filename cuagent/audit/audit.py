"""Repeat a recorded verdict on its own seeds and compare every figure.

The same machine computes the same digits again, so each figure must agree to the last digit. Two
circumstances allow a difference up to a factor: another machine, compiler or torch version; or an
attempt whose answers vary, which three repetitions show. Timings are not repeated, but compared
with their own raw samples (`audit/recount.py`). Not compared: the attempt's printed output and the
duration of the judging.
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

REPETITIONS = 2
"""Number of extra repetitions if the first one disagrees, to see if the attempt's answers vary."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit. Its field names are keys of `cuagent audit --json`."""

    said: str
    """Reason of the recorded verdict."""
    verdict: Verdict
    """The repeated verdict that agrees best with the record."""
    contrary: tuple[str, ...]
    """Recorded figures that the repetition contradicts, one line each."""
    circumstances: tuple[str, ...]
    """Other differences, such as versions or the isolation tier, one line each; they do not count
    against the record."""

    @property
    def holds(self) -> bool:
        """True if no recorded figure is contradicted."""
        return not self.contrary

    @property
    def line(self) -> str:
        """The result in one line."""
        if self.holds:
            return f"holds: {self.said}; {len(self.verdict.draws)} draws as recorded"
        count = len(self.contrary)
        figures = "1 figure differs" if count == 1 else f"{count} figures differ"
        return f"does not hold: {self.said}; {figures} from the record"


@dataclass(frozen=True)
class Recorded:
    """The parsed content of an evidence file."""

    data: Mapping[str, Any]
    task: Task
    attempt: Attempt
    verdict: Verdict
    timing: Timing | None


def audit(
    data: Mapping[str, Any], isolation: Isolation = "auto", effort: Effort | None = None
) -> Audit:
    """Repeat the verdict of an evidence file (`data` is its content).

    If `effort` is given and the verdict is accepted, the timing is repeated too.
    Raises EvidenceError, TaskError, ForkServerError, OracleLost.
    """
    from cuagent.build import build
    from cuagent.verify import Referee

    recorded = parse_evidence(data)
    built = build(recorded.attempt, recorded.task.device)
    with Referee(recorded.task, isolation) as referee:
        found = compare(recorded, built, repeat_verdict(recorded, built, referee))
        if effort is None or not found.verdict.accepted:
            return found
        timed = _repeat_timing(recorded, built, referee, effort)
    return replace(found, circumstances=(*found.circumstances, *timed))


def parse_evidence(data: Mapping[str, Any]) -> Recorded:
    """Parse the content of an evidence file. Raises EvidenceError if a part is missing or wrong."""
    from cuagent.attempt import AttemptError
    from cuagent.task.plain import task_from_json
    from cuagent.timing import Timing
    from cuagent.verify import Verdict

    try:
        recorded = Recorded(
            data,
            task_from_json(dict(data["task"])),
            attempt_of(data["attempt"]),
            revive(Verdict, data["verdict"]),
            revive(Timing | None, data["timing"]),
        )
        # Read every field that the comparison reads, so that malformed evidence fails here.
        _forged(recorded)
        _differences(data, recorded.verdict, recorded.verdict)
        _libraries(data)
        _require_seeds(recorded.verdict)
        return recorded
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        raise EvidenceError(
            f"the evidence is incomplete or malformed: {type(error).__name__} {error!s:.200}"
        ) from error
    except (AttemptError, RecordError, RecursionError) as error:
        raise EvidenceError(f"the evidence is incomplete or malformed: {error!s:.200}") from error


def _require_seeds(then: Verdict) -> None:
    """Raise ValueError for seeds that torch's generators do not accept."""
    for seed in (*then.seeds, *(draw.seed for draw in then.draws)):
        if not 0 <= seed < 1 << 63:
            raise ValueError("a seed is not in 0 to 2**63 - 1")


def repeat_verdict(recorded: Recorded, built: Build, referee: Referee) -> list[Verdict]:
    """Repeat the verdict on its recorded seeds: once, or three times if the first one disagrees."""
    from cuagent.audit.figures import disagreements
    from cuagent.verdict import Reason
    from cuagent.verify import races
    from cuagent.verify.sanitize import gated

    found: list[Verdict] = []
    while len(found) <= REPETITIONS:
        verdict = referee.verify(recorded.attempt, built, again=recorded.verdict)
        if recorded.verdict.reason is Reason.MEMORY_FAULT:
            verdict = gated(referee, recorded.attempt, built, verdict)
            verdict = races.gated(referee, recorded.attempt, verdict)
        found.append(verdict)
        failed = verdict.reason is Reason.INFRASTRUCTURE
        if failed or not disagreements(recorded.verdict, found[0], coarse=False):
            break
    return found


def _repeat_timing(recorded: Recorded, built: Build, referee: Referee, effort: Effort) -> list[str]:
    """Measure the recorded ratios again and return one line for each.

    The lines are for information; a new timing never contradicts the record.
    """
    from cuagent.measure.timing.timer import time_arms

    then = recorded.timing.ratios if recorded.timing is not None else {}
    timing = time_arms(referee, recorded.attempt, built, tuple(then) or ("eager",), effort)
    return [
        f"timed again: {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] over {name}"
        + (f", recorded {old.value:.2f}x [{old.low:.2f}, {old.high:.2f}]" if old else "")
        for name, ratio in timing.ratios.items()
        for old in (then.get(name),)
    ]


def compare(recorded: Recorded, built: Build, found: Sequence[Verdict]) -> Audit:
    """Compare the record with its repetitions `found`.

    If versions differ or the answers vary, figures are compared coarsely (`figures.py`).
    """
    from cuagent.audit.figures import disagreements, rejected_by_timing

    then = recorded.verdict
    differences = _differences(recorded.data, then, found[0])
    varies = any(disagreements(found[0], other, coarse=False) for other in found[1:])
    coarse = bool(differences) or varies
    lists = [disagreements(then, verdict, coarse=coarse) for verdict in found]
    verdict, figures = min(zip(found, lists, strict=True), key=lambda pair: len(pair[1]))
    contrary = [*_forged(recorded), *figures, *_changed_libraries(recorded.data, built)]
    contrary += _timing(recorded)
    circumstances = [*differences, *_tier(then, verdict)]
    if varies:
        circumstances.append("its answers vary from run to run; figures were compared coarsely")
    elif differences:
        circumstances.append("figures were compared coarsely, because of these differences")
    if verdict.accepted and rejected_by_timing(then):
        circumstances.append(
            "its values are right; it was rejected while timed, which an audit skips"
        )
    return Audit(then.reason.value, verdict, tuple(contrary), tuple(circumstances))


def _forged(recorded: Recorded) -> list[str]:
    """Return one line for each of task and attempt whose text does not have the recorded digest."""
    data, then = recorded.data, recorded.verdict
    texts = {
        "task": (recorded.task.digest, data.get("task_digest"), then.task),
        "attempt": (recorded.attempt.digest, data.get("attempt_digest"), then.attempt),
    }
    return [
        f"the {name}'s text is not the one of the verdict"
        for name, digests in texts.items()
        if len(set(digests)) > 1
    ]


def _differences(data: Mapping[str, Any], then: Verdict, now: Verdict) -> list[str]:
    """Return one line for each changed version: of the verifier, torch or the compilers."""
    from cuagent.build import versions

    lines = []
    if data.get("verifier") != verifier_digest():
        lines.append("the verifier's own sources have changed")
    new = now.versions | (versions() if data.get("compilers") else {})
    old = then.versions | data.get("compilers", {})
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines.append(f"{name}: recorded {old.get(name)}, now {new.get(name)}")
    return lines


def _tier(then: Verdict, now: Verdict) -> list[str]:
    return [] if then.tier == now.tier else [f"isolation: recorded {then.tier}, now {now.tier}"]


def _changed_libraries(data: Mapping[str, Any], built: Build) -> list[str]:
    """Return one line for each compiled library that differs from the recorded one.

    Contents are compared only if the compilers are the same. g++ gives the same bytes for the same
    text; nvcc may not, so libraries of nvcc are compared only by the cache key of their inputs.
    """
    from cuagent.build import versions

    then = _libraries(data)
    now = {one["source"]: one for one in library_hashes(built)}
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
    """Return one line for each contradiction of a timing with its samples or with the verdict."""
    from cuagent.audit.recount import contradictions

    timing, then = recorded.timing, recorded.verdict
    if timing is None:
        return []
    found = contradictions(timing, recorded.task.device)
    arm = timing.arm("candidate")
    if then.accepted and (timing.refused or arm is None or arm.failed):
        found.append("timing: rejected there, and accepted in the verdict")
    found += [
        f"timing: {name} is {version} there and {then.versions.get(name)} in the verdict"
        for name, version in timing.versions.items()
        if version != then.versions.get(name)
    ]
    return found
