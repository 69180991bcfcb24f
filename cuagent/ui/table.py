"""Format builds, verdicts and timings as styled lines. Pure functions.

Each function takes a width in characters and leaves out the less important parts if it is small.
Colour only repeats the words, so the lines lose nothing on paper or in a pipe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from cuagent.build.result import Build
from cuagent.score import Score
from cuagent.timing import Effort, Ratio, Standing, Timing
from cuagent.ui.text import UNICODE, Glyphs, clean, clip, duration, one_line, ratio, times, wrap
from cuagent.verdict import Draw, Reason, Verdict

if TYPE_CHECKING:
    from cuagent.judgement import Judgement

WIDEST = 120
"""Largest width in characters of a line with several facts, also in a file."""
NARROW = 50
"""Width in characters below which short names are used and nothing is indented."""
SHOWN_DIAGNOSTICS = SHOWN_DRAWS = 3
COPIED = ("run", "details", "apply", "export", "or")
NAMES = {
    "compile": "torch.compile",
    "reduce-overhead": "CUDA graphs",
    "max-autotune-no-cudagraphs": "max-autotune",
    "max-autotune": "max-autotune, graphs",
}
SHORT = {
    "reduce-overhead": "graphs",
    "max-autotune-no-cudagraphs": "autotune",
    "max-autotune": "autotune graphs",
    "cuda_graph": "graph",
    "cudnn_benchmark": "tuned",
    "channels_last": "NHWC",
    "tf32": "TF32",
}
"""Short words for the parts of a rung's name, such as `NHWC` for `channels_last`."""
MERIT = {
    -1: "not accepted",
    1: "correct, not clearly faster than eager",
    2: "clearly faster than eager",
    3: "clearly faster than eager and torch.compile",
}
_COLOURS = {Standing.FASTER: "green", Standing.SLOWER: "red", Standing.INCONCLUSIVE: "yellow"}


def judgement_lines(
    judgement: Judgement, width: int, glyphs: Glyphs = UNICODE, tier: str = ""
) -> list[Text]:
    """Return all lines about a judged attempt: compiler output, verdict, times.

    `tier` is the isolation tier that was shown before; if it is the same, it is not shown again.
    """
    lines = []
    if not judgement.build.ok:
        lines += build_lines(judgement.build, width, glyphs)
    else:
        lines += verdict_lines(judgement.verdict, width, glyphs, tier)
        if judgement.contract:
            lines += _paragraph(judgement.contract, width, "dim")
    if judgement.timing is not None:
        lines += timing_lines(judgement.timing, width, glyphs)
        lines += score_lines(judgement.score, width)
    return lines


def why_lines(
    judgement: Judgement, width: int, glyphs: Glyphs = UNICODE, tier: str = ""
) -> list[Text]:
    """Return details that an attempt's table row does not show: errors, remarks, notes.

    The notes of a verdict are shown only with a timing at record effort.
    """
    verdict, timing = judgement.verdict, judgement.timing
    if not judgement.build.ok:
        return build_lines(judgement.build, width, glyphs)[1:]
    if not verdict.accepted:
        return _verdict_details(verdict, width, glyphs, tier)
    lines = [] if timing is None else remark_lines(timing, width)
    if timing is not None and timing.effort is Effort.QUICK:
        return lines
    return lines + [line for note in verdict.notes for line in _paragraph(note, width, "dim")]


def build_lines(build: Build, width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
    """Return one line for a successful build, or the first errors of a failed one."""
    if build.ok:
        cached = sum(library.cached for library in build.libraries)
        what = _plural(len(build.libraries), "source")
        note = f", {cached} from the cache" if cached else ""
        return _headline(glyphs.yes, "compiled", f"{what}{note}", build.seconds, "green", width)
    lines = _headline(glyphs.no, "build failed", "", build.seconds, "red", width)
    errors = [d for d in build.diagnostics if d.severity == "error"]
    for error in errors[:SHOWN_DIAGNOSTICS]:
        lines += _paragraph(f"{error.file}:{error.line}: {error.message}", width, "red")
        if source := clean(error.source_line).strip():
            lines.append(Text("    " + clip(source, width - 4, glyphs.more), "dim"))
    if len(errors) > SHOWN_DIAGNOSTICS:
        rest = _plural(len(errors) - SHOWN_DIAGNOSTICS, "more error")
        lines.append(Text(f"  and {rest}", "dim"))
    return lines


def verdict_lines(
    verdict: Verdict, width: int, glyphs: Glyphs = UNICODE, tier: str = ""
) -> list[Text]:
    """Return the lines about a verdict: reason, worst draws, rules, and the isolation tier.

    The tier is left out if it equals `tier`, which was shown before.
    """
    seconds = verdict.seconds.get("total")
    match verdict.reason:
        case Reason.ACCEPTED if verdict.accepted:
            lines = _headline(glyphs.yes, "accepted", "", seconds, "green", width)
        case Reason.INFRASTRUCTURE | Reason.NOT_CERTIFIABLE:
            lines = _headline(glyphs.unsure, "no verdict", verdict.reason, seconds, "yellow", width)
        case reason:
            lines = _headline(glyphs.no, "rejected", reason, seconds, "red", width)
    return lines + _verdict_details(verdict, width, glyphs, tier)


def _verdict_details(verdict: Verdict, width: int, glyphs: Glyphs, tier: str) -> list[Text]:
    """Return the lines of a verdict below its headline."""
    lines = _paragraph(verdict.detail, width) if verdict.detail else []
    for draw in _worst_of_each_kind(verdict.draws):
        note = f", {more}" if (more := verdict.extra_note(draw)) else ""
        error = f"error {draw.max_error:.3g}, {times(draw.ratio)} the bound"
        error = error if math.isfinite(draw.ratio) else "the error is not finite"
        text = f"{draw.kind}: {error}{note}"
        lines += _paragraph(text, width, "red")
    if verdict.hint:
        lines += _paragraph(verdict.hint, width, "dim")
    facts = [
        f"{name} {'passed' if rule.passed else 'failed'}{_worst(rule.worst)}"
        for name, rule in (("strict", verdict.strict), ("lax", verdict.lax))
        if rule is not None
    ]
    if verdict.precision is not None and verdict.accepted:
        facts.append(f"precision {verdict.precision}")
    if verdict.tier != tier:
        facts.append(f"isolation {verdict.tier}")
    return lines + (_facts(facts, width, glyphs) if facts else [])


def _worst(ratio: float) -> str:
    """Return the largest error over its bound as text; "" if it is not finite."""
    return f" at {ratio:.3g} of its bound" if math.isfinite(ratio) else ""


def _worst_of_each_kind(draws: Sequence[Draw]) -> list[Draw]:
    """Return the worst failed draw of each kind of inputs, at most `SHOWN_DRAWS`."""
    worst: dict[str, Draw] = {}
    for draw in draws:
        if not draw.passed and (draw.kind not in worst or draw.ratio > worst[draw.kind].ratio):
            worst[draw.kind] = draw
    return list(worst.values())[:SHOWN_DRAWS]


def timing_lines(timing: Timing, width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
    """Return a table of the arms, with the device and effort of the timing."""
    lines = _arm_lines(timing, width, glyphs) + remark_lines(timing, width)
    facts = [*share_facts(timing), one_line(timing.device)]
    effort = "quick timing, no claim" if timing.effort is Effort.QUICK else "record timing"
    return lines + _facts([*facts, effort], width, glyphs)


def remark_lines(timing: Timing, width: int) -> list[Text]:
    """Return the remarks on a timing as lines: serious ones in red, notes in yellow."""
    grave = len(timing.remarks) - len(timing.notes)
    styles = ["red"] * grave + ["yellow"] * len(timing.notes)
    pairs = zip(timing.remarks, styles, strict=True)
    return [line for text, style in pairs for line in _paragraph(text, width, style)]


def share_facts(timing: Timing) -> list[str]:
    """Return the candidate's share of the roofline and the task's floor as [text]; [] if
    unknown."""
    if timing.share is None or timing.floor is None:
        return []
    floor = f"floor {duration(timing.floor.seconds)}, {timing.floor.bound}"
    return [f"{timing.share:.0%} of the roofline ({floor})"]


def _arm_lines(timing: Timing, width: int, glyphs: Glyphs) -> list[Text]:
    """Return a row for each arm: name, time, and the arm's time over the candidate's."""
    room = 24 if width >= NARROW else 8
    names = {arm.name: baseline_name(arm.name, room) for arm in timing.arms}
    first = max(map(cell_len, names.values()), default=0)
    lines = []
    for arm in timing.arms:
        time = "failed" if arm.failed else duration(arm.median)
        line = Text(f"  {names[arm.name]:<{first}}  {time:>7}")
        room = width - cell_len(line.plain) - 2
        if arm.failed:
            line.append("  " + clip(one_line(arm.failed), room, glyphs.more), "dim")
        elif gain := timing.ratios.get(arm.name):
            line.append("  " + _ratio_text(gain, room), _COLOURS[gain.standing])
        lines.append(line)
    return lines


def score_lines(score: Score, width: int) -> list[Text]:
    """Return the milestone reward with its meaning."""
    colour = "green" if score.reward >= 2 else "yellow" if score.reward == 1 else "red"
    return _paragraph(f"score {score.reward}: {MERIT.get(score.reward, '')}", width, colour)


def smallest_ratio(timing: Timing | None) -> Ratio | None:
    """Return the smallest measured ratio, which is that over the best baseline; None if there is
    none."""
    ratios = timing.ratios.values() if timing is not None else ()
    return min(ratios, key=lambda r: r.value, default=None)


def baseline_name(name: str, width: int) -> str:
    """Return an arm's name for people, in at most `width` characters if possible."""
    if "+" in name:
        return " ".join(SHORT.get(part, part) for part in name.split("+"))
    called = NAMES.get(name, name)
    return called if cell_len(called) <= width else SHORT.get(name, name)


def label_lines(pairs: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """Return `name value` rows with aligned values; a long value is wrapped, never cut.

    A path or a command (a name in `COPIED`) stays on one line, so that it can be copied.
    """
    first = max((cell_len(name) for name, _ in pairs), default=0)
    lines = []
    for name, value in pairs:
        room = max(width - first - 4, 8)
        pieces = [value] if name in COPIED else wrap(value, room)
        if name in COPIED and cell_len(value) > room:  # put it below its name, where more fits
            lines.append(Text(f"  {name}", "dim"))
            lines.append(Text(value if cell_len(value) > width - 4 else f"    {value}"))
            continue
        for i, piece in enumerate(pieces):
            label = f"  {name if i == 0 else '':<{first}}  "
            lines.append(Text.assemble((label, "dim"), piece))
    return lines


def _ratio_text(gain: Ratio, room: int) -> str:
    """Return a ratio with its interval and conclusion, as far as they fit into `room`
    characters."""
    full = ratio(gain)
    for text in (f"{full} {gain.standing}", full, f"{times(gain.value)} {gain.standing}"):
        if cell_len(text) <= room:
            return text
    return times(gain.value)


def _headline(
    sign: str, word: str, detail: str, seconds: float | None, colour: str, width: int
) -> list[Text]:
    text = f"{sign} {word}: {detail}" if detail else f"{sign} {word}"
    first, *others = wrap(text, width - 2)
    mark = len(f"{sign} {word}")
    line = Text.assemble((first[:mark], f"bold {colour}"), (first[mark:], colour))
    took = f"  {duration(seconds)}" if seconds else ""
    if not others and cell_len(first + took) <= width:
        line.append(took, "dim")
    return [line, *(Text("  " + rest, colour) for rest in others)]


def _paragraph(text: str, width: int, style: str = "") -> list[Text]:
    pieces = wrap(one_line(text), max(width - 2, 8))
    return [Text("  " + piece, style) for piece in pieces]


def _facts(facts: Sequence[str], width: int, glyphs: Glyphs) -> list[Text]:
    """Return the facts in dim text, separated by dots, with as many on a line as fit."""
    lines: list[str] = []
    for fact in facts:
        joined = f"{lines[-1]} {glyphs.dot} {fact}" if lines else fact
        if lines and cell_len(joined) <= min(width, WIDEST) - 2:
            lines[-1] = joined
        else:
            lines.append(fact)
    return [Text("  " + piece, "dim") for line in lines for piece in wrap(line, max(width - 2, 8))]


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
