"""Format figures and verdicts as short texts for the model and the user.

A verdict precedes figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cuagent.build.result import Build, Diagnostic
from cuagent.timing import Standing
from cuagent.verdict import Draw, Reason, Verdict, on_inputs

if TYPE_CHECKING:
    from cuagent.agent.run import Run
    from cuagent.agent.tried import Tried
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder, Rung
    from cuagent.timing import Ratio, Timing

NAMES = {"eager": "eager", "compile": "torch.compile"}
MOST_DIAGNOSTICS = 8
"""Largest number of compiler messages shown for one build."""
LONGEST_OUTPUT = 12
"""Largest number of lines shown of the text that a candidate printed."""
HINTS = {
    Reason.BUILD_FAILED: "correct the source, then call compile.",
    Reason.IMPORT_FAILED: "model_new.py must import cleanly; paths to kernels are relative to it.",
    Reason.CONSTRUCT_FAILED: "ModelNew takes the same constructor arguments as the reference.",
    Reason.STATE_MISMATCH: "keep the parameters and buffers of the reference: names and shapes.",
    Reason.CRASHED: "look for an index out of bounds, a wrong type or a misaligned vector load.",
    Reason.TIMED_OUT: "look for an endless loop, a deadlock at a barrier or very slow code.",
    Reason.WRONG_FORM: "return the same structure, shapes and dtypes as the reference.",
    Reason.WRONG_VALUES: "look for a wrong index, a missing edge or a race.",
    Reason.LESS_PRECISE: "sum in fp32 (or wider), in more than one accumulator or pairwise.",
    Reason.NOT_WRITTEN: "a part of the output is never written: check the grid and the tail.",
    Reason.WROTE_OUTSIDE: "check the bounds of every store.",
    Reason.CHANGED_INPUT: "write to a new tensor, never into an argument or a weight.",
    Reason.NOT_DETERMINISTIC: "look for a race, or a read of uninitialized memory.",
    Reason.MEMORY_FAULT: "check indices, barriers, locks of shared sums, uninitialized reads.",
    Reason.WRONG_WHILE_TIMED: "each call must compute its own answer: keep no state between calls.",
    Reason.CLOCK_CONTRADICTION: "all work must be done on the current stream, within the call.",
    Reason.TOO_SLOW: "change it, or go on with the best attempt; verify without only_if_faster.",
    Reason.INFRASTRUCTURE: "your kernel is not the cause; call verify again.",
}


def duration(seconds: float) -> str:
    """Format a duration: 1.23 s, 45.6 ms, 789 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def ratios_line(judgement: Judgement) -> str:
    """Format the ratios of all baselines: 1.84x over eager [1.79, 1.90], 1.21x over torch.compile
    ...
    """
    timing = judgement.timing
    if timing is None or not timing.ratios:
        return "not timed"
    return ", ".join(ratio_over(name, ratio) for name, ratio in timing.ratios.items())


def ratio_over(name: str, ratio: Ratio) -> str:
    """Format one ratio: 1.84x over eager [1.79, 1.90], with a note if it is neither faster nor
    slower.
    """
    limits = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.value:.2f}x over {NAMES.get(name, name)} {limits}{ratio.doubt}"


def ladder_text(ladder: Ladder) -> str:
    """Format the ladder for the message that the model gets before its first step."""
    return "Ways to run the module faster without a kernel:\n\n" + "\n".join(rung_lines(ladder))


def rung_lines(ladder: Ladder) -> Iterator[str]:
    """Yield one line per rung, with the best one marked, then the notes on the ladder."""
    best = ladder.best
    for rung in ladder.rungs:
        yield _rung_line(rung, best is not None and rung.name == best.name)
    if ladder.later:
        yield f"not timed yet: {', '.join(ladder.later)}"
    if ladder.settings:
        yield f"torch settings: {ladder.settings}"
    yield from ladder.notes


def _rung_line(rung: Rung, best: bool) -> str:
    if math.isnan(rung.seconds) and not rung.failed:
        return f"{rung.name}: not timed yet"
    if rung.failed:
        return f"{rung.name}: failed: {' '.join(rung.failed.split())[:160]}"
    parts = [duration(rung.seconds)]
    if rung.over_eager is not None and rung.name != "eager":
        parts.append(ratio_over("eager", rung.over_eager))
    if not rung.admitted:
        parts.append("uses a precision that the task does not allow")
    elif not rung.right:
        parts.append("rejected by the strict rule")
    if rung.settings:
        parts.append(f"needs {rung.settings}")
    if rung.error is not None:
        parts.append(f"error {rung.error:.1e}")
    if best:
        parts.append("the one to beat")
    return f"{rung.name}: {', '.join(parts)}"


def times_line(timing: Timing) -> str:
    """Format the arms' times: candidate 0.41 ms, eager 0.76 ms, torch.compile failed: no
    compiler.
    """
    return ", ".join(
        f"{NAMES.get(arm.name, arm.name)} "
        + (f"failed: {arm.failed}" if arm.failed else duration(arm.median))
        for arm in timing.arms
    )


def judgement_lines(tried: Tried, best: bool) -> Iterator[str]:
    """Yield lines on a judged attempt: the verdict, the figures or the errors, the next step."""
    judgement, verdict = tried.judgement, tried.judgement.verdict
    if not verdict.accepted:
        yield from _rejected(tried.n, verdict, judgement.build)
        return
    yield f"ACCEPTED attempt {tried.n}: {ratios_line(judgement)}"
    if judgement.timing:
        yield times_line(judgement.timing)
        if (share := judgement.timing.share) is not None:
            yield f"{share:.0%} of the roofline"
        yield from judgement.timing.remarks
    if verdict.strict:
        yield f"largest error: {verdict.strict.worst:.2g} of the limit"
    if judgement.contract:
        yield judgement.contract
    yield f"reward {judgement.score.reward}" + (", the best so far" if best else "")


def next_line(timing: Timing | None) -> str:
    """Return a line that suggests the next step to the model after an accepted attempt."""
    ratios = timing.ratios if timing else {}
    slower = _named(ratios, Standing.SLOWER)
    if slower:
        return f"next: right, but slower than {slower}: profile it to see why."
    if unsure := _named(ratios, Standing.INCONCLUSIVE):
        return (
            f"next: right, but not measurably faster or slower than {unsure}: profile it to find "
            "what to improve; if the intervals are wide, verify again."
        )
    return "next: profile it to find what to improve, or submit."


def _named(ratios: Mapping[str, Ratio], standing: Standing) -> str:
    """Join the names of the baselines whose ratio has this standing: `eager and torch.compile`."""
    names = [NAMES.get(name, name) for name, r in ratios.items() if r.standing is standing]
    return " and ".join(names)


def attempts_table(run: Run) -> str:
    """Return a list of the attempts, one per line, for a conversation that was summarized."""
    lines = []
    for tried in run.tried:
        best = " (the best)" if run.best and run.best.n == tried.n else ""
        verdict = tried.judgement.verdict
        result = ratios_line(tried.judgement) if tried.accepted else f"rejected: {verdict.reason}"
        lines.append(f"- attempt {tried.n}{best}: {result}")
    return "\n".join(lines)


def build_lines(build: Build) -> Iterator[str]:
    """Yield lines on a build: its errors, or each kernel's resources and the warnings."""
    if not build.ok:
        yield "FAILED"
        yield from _diagnostics(build.diagnostics)
        return
    yield f"OK: {len(build.libraries)} compiled in {duration(build.seconds)}"
    for library in build.libraries:
        for kernel in library.resources:
            spill = f", {kernel.spill_bytes} bytes spilled" if kernel.spill_bytes else ""
            yield (
                f"{library.source}: {kernel.name}: {kernel.registers} registers, "
                f"{kernel.shared_bytes} bytes shared{spill}"
            )
    warnings = [d for d in build.diagnostics if d.severity == "warning"]
    yield from _diagnostics(warnings[:3])


def _rejected(n: int, verdict: Verdict, build: Build | None) -> Iterator[str]:
    infrastructure = verdict.reason is Reason.INFRASTRUCTURE
    word = "NOT JUDGED" if infrastructure else "REJECTED"
    yield f"{word} attempt {n}: {verdict.reason}"
    diagnosed = bool(build and not build.ok and build.diagnostics)
    if build and not build.ok:
        yield from _diagnostics(build.diagnostics)
    elif verdict.detail:
        yield verdict.detail
    for draw in _worst_by_kind(verdict.draws)[:4]:
        note = f" ({more})" if (more := verdict.extra_note(draw)) else ""
        error = f"largest error {draw.max_error:.3g}, {draw.ratio:.3g} times the limit"
        error = error if math.isfinite(draw.ratio) else "the error is not finite"
        yield f"{on_inputs(draw.kind)}: {error}{note}"
    if verdict.output.strip() and not diagnosed:  # else it repeats the compiler's messages
        lines = verdict.output.strip().splitlines()[-LONGEST_OUTPUT:]
        yield "output of the candidate:"
        yield from (f"  {line[:200]}" for line in lines)
    if hint := verdict.hint or HINTS.get(verdict.reason):
        yield f"next: {hint}"


def _worst_by_kind(draws: tuple[Draw, ...]) -> list[Draw]:
    """Return the worst failed draw of each kind of input."""
    worst: dict[str, Draw] = {}
    for draw in draws:
        if not draw.passed and (draw.kind not in worst or draw.ratio > worst[draw.kind].ratio):
            worst[draw.kind] = draw
    return list(worst.values())


def _diagnostics(diagnostics: tuple[Diagnostic, ...] | list[Diagnostic]) -> Iterator[str]:
    for d in diagnostics[:MOST_DIAGNOSTICS]:
        yield f"{d.file}:{d.line}: {d.severity}: {d.message}"
        if d.source_line.strip():
            yield f"    {d.source_line.strip()[:160]}"
    if len(diagnostics) > MOST_DIAGNOSTICS:
        yield f"... and {len(diagnostics) - MOST_DIAGNOSTICS} more"
