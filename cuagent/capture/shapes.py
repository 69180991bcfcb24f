"""Judge an attempt on every recorded shape of a captured module, and compute the speedup weighted
by calls.

Each shape is a separate task (`shape_2.py`) with separate secret inputs and timing. On a shape
where the attempt is rejected or surely slower, the original module is used, with a speedup of 1. An
exported package does the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE, EAGER
from cuagent.capture.listing import amdahl, calls_text
from cuagent.events import Emit, Phase, ignore
from cuagent.record import plain, read_file
from cuagent.task import Task, load_task
from cuagent.task.load import FOLDER_FILE, MANIFEST
from cuagent.timing import Effort, Ratio, Standing

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.verify.domain import Domain
    from cuagent.verify.referee import Isolation

LARGEST_MANIFEST = 64 << 20
"""Largest number of bytes of a manifest."""
MOST_CALLS = 10**15
LONGEST_DETAIL = 120
"""Largest number of characters of a verdict's detail in the reason for a shape."""
SHAPE_FILE = re.compile(r"[A-Za-z0-9_]+\.py")
"""Name of the file of a shape's task, in the folder of the captured task."""
MOST_JUDGED = 8
"""Largest number of shapes that are judged, the most frequent first; all others have a speedup of
1."""


@dataclass(frozen=True)
class ShapeResult:
    """Result of an attempt on one recorded shape."""

    task: str | None
    """File name of the shape's task; None for calls of another call form, which have no task."""
    calls: int
    covered: bool
    """True if the attempt is used for this shape; False if the original module is used."""
    why: str
    """Reason for using the original module; "" if the attempt is used."""
    speedup: float = 1.0
    """Eager time over the attempt's time; 1 if the original module is used."""
    low: float = 1.0
    high: float = 1.0
    eager_s: float | None = None
    """Seconds of one call in eager mode; None if it was not timed."""
    domain: Domain | None = None
    """Calls for which the accepted verdict is valid; None if the original module is used."""

    @property
    def ratio(self) -> Ratio:
        """Eager time over the time of the attempt, or of the original module, with its interval."""
        return Ratio(self.speedup, self.low, self.high)


@dataclass(frozen=True)
class ShapesResult:
    """Results of an attempt on all recorded shapes of a captured module."""

    shapes: tuple[ShapeResult, ...]
    share: float
    """Share of the time of the script's steps that the module's forward took."""
    trains: bool = False
    """True if training steps were judged. `share` lacks their backward passes then."""
    share_of_class: float | None = None
    """Share of all modules of the class, which a package changes together. It is estimated from
    their calls; None if no other module of the class was called."""

    @property
    def weighted(self) -> float:
        """Total eager time of all recorded calls divided by their total time with the attempt.

        Shapes that use the original module are included with a speedup of 1.
        """
        known = [s for s in self.shapes if s.eager_s is not None]
        mean = sum(s.calls * (s.eager_s or 0) for s in known) / max(1, sum(s.calls for s in known))
        times = [(s.calls * (s.eager_s or mean), s.speedup) for s in self.shapes]
        before = sum(seconds for seconds, _ in times)
        after = sum(seconds / speedup for seconds, speedup in times)
        return before / after if after else 1.0

    @property
    def worst(self) -> ShapeResult:
        """The shape with the smallest speedup."""
        return min(self.shapes, key=lambda s: s.speedup)

    @property
    def script(self) -> float:
        """Expected speedup of the script's steps, from `weighted` and `share` by Amdahl's law."""
        return amdahl(self.share, self.weighted)

    @property
    def script_of_class(self) -> float | None:
        """Expected speedup of the script's steps if all modules of the class are changed; None if
        there is only one."""
        share = self.share_of_class
        return None if share is None else amdahl(share, self.weighted)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        return {
            "shapes": [plain(shape) for shape in self.shapes],
            "weighted": self.weighted,
            "worst": plain(self.worst),
            "share": self.share,
            "script": None if self.trains else self.script,
            "share_of_class": self.share_of_class,
            "script_of_class": None if self.trains else self.script_of_class,
        }


def manifest_of(task: Task) -> dict[str, Any] | None:
    """Return the manifest of a captured task; None if the task was not captured.

    A manifest is read without following a link. One of another form counts as none: the folder may
    come from elsewhere, and its shapes must be files in it.
    """
    if task.path.name != FOLDER_FILE:
        return None
    try:
        found = json.loads(read_file(task.path.parent, MANIFEST, LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_manifest(found) else None


def _is_manifest(found: dict[str, Any]) -> bool:
    shapes, share = found.get("shapes"), found.get("share")
    return (
        isinstance(shapes, list)
        and bool(shapes)
        and all(isinstance(shape, dict) and _is_shape(shape) for shape in shapes)
        and all(isinstance(found.get(name), str) for name in ("module", "class"))
        and all(_is_count(found.get(name)) for name in ("calls", "calls_of_other_forms"))
        and isinstance(share, int | float)
        and 0 <= share <= 1
    )


def _is_shape(shape: dict[str, Any]) -> bool:
    name = shape.get("task")
    return _is_count(shape.get("calls")) and (
        name is None or (isinstance(name, str) and SHAPE_FILE.fullmatch(name) is not None)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_CALLS


def judge_shapes(
    task: Task,
    attempt: Attempt,
    main: Judgement,
    isolation: Isolation = "auto",
    emit: Emit = ignore,
) -> ShapesResult | None:
    """Judge an attempt on all recorded shapes of a captured task; None if the task was not
    captured.

    `main`: the judgement on the most frequent shape, which is not repeated. Raises TaskError,
    ForkServerError and OracleLost.
    """
    manifest = manifest_of(task)
    if manifest is None:
        return None
    by_calls = sorted(manifest["shapes"], key=lambda shape: -shape["calls"])
    results = []
    for shape in by_calls:
        file, calls = shape["task"], shape["calls"]
        if file == FOLDER_FILE:
            results.append(_result(file, calls, main))
        elif file is None:
            results.append(ShapeResult(None, calls, covered=False, why="other arguments"))
        elif sum(r.task is not None for r in results) >= MOST_JUDGED:
            results.append(ShapeResult(file, calls, covered=False, why="not judged: too rare"))
        else:
            emit(Phase(f"judging {file}, {calls} call{'s' * (calls != 1)}"))
            results.append(_judged(task, task.path.with_name(file), calls, attempt, isolation))
    if others := manifest["calls_of_other_forms"]:
        results.append(ShapeResult(None, others, covered=False, why="other arguments"))
    return ShapesResult(
        tuple(results),
        float(manifest["share"]),
        trains=bool(task.step),
        share_of_class=_share_of_class(manifest),
    )


def _share_of_class(manifest: dict[str, Any]) -> float | None:
    own, every = manifest["calls"], manifest.get("calls_of_class")
    if not _is_count(every) or not own or every <= own:
        return None
    share: float = min(1.0, manifest["share"] * every / own)
    return share


def lines(found: ShapesResult) -> list[str]:
    """Return the results as lines of text: one for each shape, then the weighted speedup, the worst
    shape and the script."""
    rows = []
    for shape in found.shapes:
        name = shape.task or "other calls"
        interval = f"[{shape.low:.2f}, {shape.high:.2f}]"
        figure = f"{shape.speedup:.2f}x {interval} over eager{shape.ratio.doubt}"
        rows.append(
            f"{calls_text(shape.calls)}  {name}: "
            + (figure if shape.covered else f"original module ({shape.why})")
        )
    worst = found.worst
    share = f"{found.share:.0%} of the script's steps"
    last = f"the module took {share}, so they should become {found.script:.2f}x as fast"
    if found.script_of_class is not None:
        last += (
            f"; all modules of its class, which optimize_ changes together, took about "
            f"{found.share_of_class:.0%}: {found.script_of_class:.2f}x"
        )
    if found.trains:
        last = (
            f"the module's forward took {share}, and its backward was not measured there: "
            "--time-script measures the steps before and after"
        )
    elif not any(shape.ratio.standing is Standing.FASTER for shape in found.shapes):
        last = f"the module took {share}; no shape is surely faster, so no gain is shown"
    return [
        *rows,
        f"weighted by calls and time: {found.weighted:.2f}x over eager; worst shape: "
        f"{worst.speedup:.2f}x ({worst.task or 'other calls'})",
        last,
    ]


def _judged(
    task: Task, path: Path, calls: int, attempt: Attempt, isolation: Isolation
) -> ShapeResult:
    from cuagent.judge import LocalJudge

    shape = load_task(path, device=task.device.value, precision=task.precision.value)
    with LocalJudge(shape, isolation, baselines=(EAGER,)) as judge:
        return _result(path.name, calls, judge.judge(attempt, Effort.QUICK))


def _result(file: str, calls: int, judgement: Judgement) -> ShapeResult:
    """Return the result of one shape, given the judgement of the attempt on it."""
    timing = judgement.timing
    medians = {arm.name: arm.median for arm in timing.arms if not arm.failed} if timing else {}
    eager = medians.get(EAGER)
    if not judgement.verdict.accepted:
        detail = " ".join(judgement.verdict.detail.split())[:LONGEST_DETAIL]
        why = f"rejected: {judgement.verdict.reason}" + (f", {detail}" if detail else "")
        return ShapeResult(file, calls, covered=False, why=why, eager_s=eager)
    ratio = timing.ratios.get(EAGER) if timing is not None else None
    if ratio is None or CANDIDATE not in medians:
        return ShapeResult(file, calls, covered=False, why="not timed", eager_s=eager)
    if ratio.standing is Standing.SLOWER:
        why = f"slower: {ratio.value:.2f}x"
        return ShapeResult(file, calls, covered=False, why=why, eager_s=eager)
    figures = (ratio.value, ratio.low, ratio.high, eager)
    return ShapeResult(file, calls, True, "", *figures, domain=judgement.domain)
