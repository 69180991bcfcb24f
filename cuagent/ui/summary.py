"""Format the last block of a run's output: gain, evidence, files and next commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from cuagent.agent.stop import FINISHED
from cuagent.arms import CANDIDATE
from cuagent.events import RunEnded, RunStarted
from cuagent.judgement import Result, free_of, result_of
from cuagent.measure.roofline.model import seconds_text
from cuagent.record import RUNS
from cuagent.timing import Effort, Ratio, Standing
from cuagent.ui.table import NARROW, baseline_name, label_lines, share_facts
from cuagent.ui.text import UNICODE, Glyphs, one_line, ratio, times, wrap

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder, Rung

EAGER, COMPILE = "eager", "compile"
KERNEL_LABEL = "kernel vs. best free option"
KERNEL_LABEL_SHORT = "kernel vs. free"
BY_HOST = 1.2
"""Time of a call in a row over its time on the GPU from which the host's time is worth a line."""
CUT_SHORT = {
    "interrupted": "interrupted",
    "model failed": "the model failed",
    "judge failed": "the judge failed",
    "unfinished": "the run has not ended",
}
"""Text for each reason why a run ended early."""


def summary_lines(
    ended: RunEnded,
    run: RunStarted | None,
    attempts: Mapping[str, int],
    width: int,
    glyphs: Glyphs = UNICODE,
) -> list[Text]:
    """Return the lines of the summary at the end of a run.

    `run` is None if its folder and the next commands are not to be shown. `attempts` maps the
    digest of an attempt to its number.
    """
    best: Judgement | None = ended.best
    found: Ladder | None = ended.ladder
    number = attempts.get(best.attempt) if best is not None else None
    name = f"attempt {number}" if number is not None else "the attempt"
    result = result_of(best, found)
    rows = [] if best is None else _evidence(best, found, width)
    if best is None and found is not None and found.contract:
        rows = [("contract", found.contract)]
    rows = [*_rows_in_a_row(best, found, name), *rows]
    tried = len(attempts)
    if result is Result.RUNG and found is not None and found.chosen is not None:
        sign = glyphs.yes if tried and ended.stop not in CUT_SHORT else glyphs.unsure
        head = f"{sign} {_rung_head(ended, found, tried)}"
        rows = [*_free_rows(best, found), *_kernel_rows(best, name, tried), *rows]
    elif best is not None and result is Result.KERNEL:
        head = f"{glyphs.yes} best: {name}"
        rows = [*_gain_rows(best, found, width), *rows]
    elif found is not None and found.best is not None:
        head = f"{glyphs.unsure} {_module_head(ended, found, tried)}"
        rows = [*_unsure_rows(found), *_kernel_rows(best, name, tried), *rows]
    elif best is None:
        head = f"{glyphs.unsure} {one_line(ended.summary)}{_early_end(ended)}"
    else:
        head = f"{glyphs.unsure} {_no_gain(best, name)}"
    colour = "yellow" if head.startswith(glyphs.unsure) else "green"
    lines = [Text(line, f"bold {colour}") for line in wrap(head, width)]
    places = _next_steps(ended, run, result, number)
    return lines + label_lines([*rows, *places], width)


def short_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def handle(run: RunStarted) -> str:
    """Return the argument that names a run in a command: its ID, or its path if it is not in the
    current folder's runs."""
    return run.run_id if run.folder.parent == RUNS.resolve() else short_path(run.folder)


def _rung_head(ended: RunEnded, found: Ladder, tried: int) -> str:
    """Return the headline if the result is a rung; `tried` is the number of kernels that were
    tried."""
    rung, best = found.chosen, ended.best
    assert rung is not None
    name = full_name(rung.name)
    if not tried:
        free = free_of(best, found)
        gain = "" if free is None else f" {times(free.value)}"
        how = "record timing" if rung.effort is Effort.RECORD else "quick timing"
        return f"no kernel tried{_early_end(ended)}; {name} is{gain} ({how})"
    if _may_add(best):
        unsure = "no kernel is surely faster than the best free option"
        return f"{unsure}; {name} is the result{_early_end(ended)}"
    if best is None:
        return f"{name} is the best found; no kernel was accepted{_early_end(ended)}"
    return f"{name} is the best found; no kernel beat it{_early_end(ended)}"


def _module_head(ended: RunEnded, found: Ladder, tried: int) -> str:
    """Return the headline if the result is the unchanged module, with the reason."""
    unsure = undecided_rung(found, ended.best)
    kernel = "" if tried else f"no kernel tried{_early_end(ended)}; "
    if unsure is not None:
        return f"{kernel}could not tell whether {full_name(unsure.name)} beats your module"
    if _may_beat(ended.best):
        return "could not tell whether the kernel beats your module"
    yet = "" if ended.stop in FINISHED else " yet"
    kernel = kernel if tried == 0 and ended.stop in CUT_SHORT else ""
    return f"{kernel}nothing beats your module{yet}"


def _early_end(ended: RunEnded) -> str:
    """Return in parentheses why the run ended early, or ""."""
    return f" ({CUT_SHORT[ended.stop]})" if ended.stop in CUT_SHORT else ""


def _may_beat(best: Judgement | None) -> bool:
    """Return True if it is inconclusive whether the attempt is faster than eager."""
    return best is not None and best.standing is Standing.INCONCLUSIVE


def undecided_rung(found: Ladder | None, best: Judgement | None) -> Rung | None:
    """Return the rung that may beat the module; None if a kernel is the likelier one to do so."""
    unsure = found.undecided if found is not None else None
    if unsure is None or unsure.over_eager is None:
        return None
    timing = best.timing if best is not None and _may_beat(best) else None
    kernel = timing.ratios[EAGER].value if timing is not None else 0.0
    return None if kernel and unsure.over_eager.value < max(1.0, kernel) else unsure


def _unsure_rows(found: Ladder) -> list[tuple[str, str]]:
    rung = found.undecided
    if rung is None or rung.over_eager is None:
        return []
    how = "record timing" if rung.effort is Effort.RECORD else "quick timing"
    again = "the same command with --fresh, when the machine is quiet"
    return [
        ("free", f"{full_name(rung.name)}: {_ratio_text(rung.over_eager)}, {how}"),
        ("retry", again),
    ]


def _may_add(best: Judgement | None) -> bool:
    """Return True if the attempt measured faster than the best rung, but inconclusively."""
    gain = best.gain if best is not None else None
    if gain is None or gain.kernel.standing is not Standing.INCONCLUSIVE:
        return False
    return gain.kernel.value > 1


def _no_gain(best: Judgement, name: str) -> str:
    if best.timing is None:
        return f"no sure gain: {name} is correct, but was not timed"
    if best.timing.suspect:
        return f"no gain: {name} is correct, but its time is not plausible"
    if best.timing.ratios[EAGER].is_equal:
        return f"no gain: {name} is correct, but takes as long as eager"
    if best.standing is Standing.INCONCLUSIVE:
        return f"no sure gain: {name} is correct, but its time and that of eager overlap"
    return f"no gain: {name} is correct, but not faster than eager"


def _gain_rows(best: Judgement, found: Ladder | None, width: int) -> list[tuple[str, str]]:
    """Return rows (label, text): the speedup of the best free option over eager, the kernel's
    speedup over that option, and their product."""
    if (gain := best.gain) is None:
        return []
    free = ("free", "nothing: eager is the best option")
    unsure = found.undecided if found is not None else None
    if unsure is not None and unsure.over_eager is not None:
        free = ("free", f"nothing sure: {full_name(unsure.name)} {_ratio_text(unsure.over_eager)}")
    label = KERNEL_LABEL if width >= NARROW else KERNEL_LABEL_SHORT
    kernel = _ratio_text(gain.kernel)
    if gain.rung != EAGER:
        free = ("free", f"{_ratio_text(gain.free)}: {full_name(gain.rung)}, no kernel")
    elif unsure is not None and (over := _lower_ratio(best, gain.kernel, unsure.name)) is not None:
        kernel = f"{_ratio_text(over)}, over {full_name(unsure.name)}"
    return [
        free,
        (label, kernel),
        ("end to end", _ratio_text(gain.end_to_end)),
    ]


def _lower_ratio(best: Judgement, over_eager: Ratio, rung: str) -> Ratio | None:
    """Return the attempt's speedup over a rung if it is smaller than that over eager, else None."""
    over = best.timing.ratios.get(rung) if best.timing is not None else None
    return over if over is not None and over.value < over_eager.value else None


def _free_rows(best: Judgement | None, found: Ladder) -> list[tuple[str, str]]:
    free = free_of(best, found)
    of_record = found.chosen is not None and found.chosen.effort is Effort.RECORD
    how = "record timing" if of_record else "quick timing"
    if age := found.age() if not of_record else "":
        how += f", {age}"
    return [] if free is None else [("free", f"{_ratio_text(free)} over eager, {how}")]


def _kernel_rows(best: Judgement | None, name: str, tried: int) -> list[tuple[str, str]]:
    """Return the row about the best of `tried` attempts, for a result without a kernel."""
    if best is None:
        return [("kernels", f"none of {tried} was accepted" if tried else "none was tried")]
    if best.gain is not None:
        return [
            ("kernels", f"{name}: {_ratio_text(best.gain.kernel)} over {full_name(best.gain.rung)}")
        ]
    return [("kernels", _no_gain(best, name))]


def _evidence(best: Judgement, found: Ladder | None, width: int) -> list[tuple[str, str]]:
    rows = []
    if (timing := best.timing) is None:
        rows.append(("timing", "not timed"))
    else:
        shown_above = {EAGER, best.gain.rung} - {COMPILE} if best.gain is not None else set()
        for name, gain in timing.ratios.items():
            if name not in shown_above:
                standing = "equal" if gain.is_equal else gain.standing
                word = f" {standing}" if width >= NARROW else ""
                where = full_name(name) if width >= NARROW else name
                rows.append((f"over {where}", ratio(gain) + word))
        rows += [("roofline", fact.replace(" of the roofline", "")) for fact in share_facts(timing)]
        afresh = timing.effort is Effort.RECORD
        how = "measured in several fresh processes" if afresh else "measured during the run only"
        rows.append(("timing", f"{how}, on {one_line(timing.device)}"))
        rows += [("note", remark) for remark in timing.remarks]
    if best.verdict.precision is not None:
        rows.append(("precision", str(best.verdict.precision)))
    if best.contract:
        rows.append(("contract", best.contract))
    return [*rows, ("isolation", best.verdict.tier)]


def _rows_in_a_row(
    best: Judgement | None, found: Ladder | None, name: str
) -> list[tuple[str, str]]:
    """Return the row with the times of calls in a row, if one of them is bound by the host."""
    timing = best.timing if best is not None else None
    timed: dict[str, tuple[float, float]] = {}
    arm = timing.arm(CANDIDATE) if timing is not None else None
    if arm is not None and arm.in_a_row_s is not None:
        timed[name] = arm.in_a_row_s, arm.median
    rungs = [found.chosen, found.best, found.rung(EAGER)] if found is not None else []
    for rung in rungs:
        if rung is not None and rung.in_a_row_s is not None:
            timed[full_name(rung.name)] = rung.in_a_row_s, rung.seconds
    if not any(row > BY_HOST * seconds for row, seconds in timed.values()):
        return []
    shown = ", ".join(f"{each} {seconds_text(row)}" for each, (row, _) in timed.items())
    return [("in a row", f"{shown} a call; the host's time counts there")]


def _ratio_text(gain: Ratio) -> str:
    return ratio(gain) + gain.doubt


def full_name(rung: str) -> str:
    """Return the name of a rung for people, such as `torch.compile` for `compile`."""
    return baseline_name(rung, 40)


def _next_steps(
    ended: RunEnded, run: RunStarted | None, result: Result, number: int | None
) -> list[tuple[str, str]]:
    rows = [("stopped", one_line(str(ended.stop)))]
    if run is not None:
        rows.append(("run", short_path(run.folder)))
        rows.append(("details", f"cuagent show {handle(run)}"))
        unmeasured = ended.ladder is None and ended.best is not None
        worse = ended.best is not None and ended.best.slower_than
        if result is Result.KERNEL or (unmeasured and not worse):
            rows.append(("apply", f"cuagent apply {handle(run)}"))
        if result is not Result.MODULE or (ended.best is not None and ended.ladder is None):
            rows.append(("export", f"cuagent export {handle(run)} --out DIR"))
        if result is Result.RUNG and number and _may_add(ended.best):
            rows.append(("or", f"cuagent export {handle(run)} --attempt {number} --out DIR"))
    return rows
