"""The ladder: what is free. Every way to run the reference quicker without a kernel of one's own.

All rungs are timed in one interleaved run, each with its error against fp64, and the best one that
the task's precision policy admits is where `optimize` starts: what a kernel adds is counted from
there. Rungs of another precision are shown, since they are free to whoever admits them, and are
never the best. Cached by task, device and versions; what was measured for more rungs, or with more
care, also serves who asks for less. On a CPU what was measured while others used it serves for some
minutes only.

Invariant: a rung is admissible only if it passes the strict rule in the policy's precision.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.events import Emit, ignore
from cuagent.measure.roofline.ceilings import AGAIN_S, CALM, describe
from cuagent.measure.roofline.count import count
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Precision, Task, TaskError
from cuagent.task.memory import free
from cuagent.timing import Effort, Floor, Ratio, Timing
from cuagent.verify.referee import Referee
from cuagent.verify.tensors import in_blocks
from cuagent.worker import SessionEnded
from cuagent.worker.arms import COMPILE, EAGER

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 6
"""Raise it when what is measured changes: older cache entries are then not read."""
AUTOTUNE, GRAPHS = "max-autotune-no-cudagraphs", "reduce-overhead"
POSSIBLE = 0.05
"""A rung whose interval allows a larger gain than this, and no gain too, is undecided."""
PROPOSED = 2
"""Number of rungs, the quickest by a quick look, that a record timing compares in any case."""
NEW_S = 60.0
"""Seconds after which a measurement is said to be an earlier one."""


@dataclass(frozen=True)
class Rung:
    """One way to run the reference."""

    name: str
    """`eager`, `compile`, `reduce-overhead`, ..., with options behind plus signs."""
    seconds: float
    """Per call; nan where it does not run."""
    over_eager: Ratio | None
    """Eager's time over this one's."""
    error: float | None
    """Largest relative error against fp64, over the output tensors: |x - r| / |r|."""
    right: bool
    """By the strict rule in the task's precision."""
    opened_s: float | None
    """Until the first call was through; what torch.compile had cached is not compiled again."""
    memory: int | None
    """Bytes of the GPU that the process took, context included."""
    admitted: bool
    """By the task's precision policy."""
    failed: str = ""
    effort: Effort = Effort.QUICK
    """Of the timing that `seconds` and `over_eager` are from."""

    @property
    def admissible(self) -> bool:
        return self.admitted and self.right and not self.failed


@dataclass(frozen=True)
class Ladder:
    """The rungs of one task on one device."""

    task: str
    """Digest."""
    precision: str
    device: str
    versions: dict[str, str]
    rungs: tuple[Rung, ...]
    seconds: float
    """How long measuring took."""
    notes: tuple[str, ...] = ()
    effort: Effort = Effort.QUICK
    later: tuple[str, ...] = ()
    """Admitted rungs that are slow to open and were not measured yet."""
    floor: Floor | None = None
    """None where the task's work could not be counted."""
    when: float = 0.0
    """Seconds since the epoch."""
    busy: float = 0.0
    """Share of the processors that others took meanwhile."""

    @property
    def best(self) -> Rung | None:
        """The quickest admissible rung; eager stays unless another is surely quicker.

        Where a record timing was made, only the rungs in it are compared.
        """
        every = [rung for rung in self.rungs if rung.admissible]
        recorded = [rung for rung in every if rung.effort is Effort.RECORD]
        admissible = recorded if any(rung.name == EAGER for rung in recorded) else every
        quicker = [r for r in admissible if r.over_eager is not None and r.over_eager.low > 1]
        eager = [rung for rung in admissible if rung.name == EAGER]
        return min(quicker or eager, key=lambda rung: rung.seconds, default=None)

    @property
    def baselines(self) -> tuple[str, ...]:
        """What an attempt is to be timed against: eager, compile and the best rung."""
        best = self.best
        return tuple(dict.fromkeys([EAGER, COMPILE, *([best.name] if best else [])]))

    @property
    def proposed(self) -> tuple[str, ...]:
        """What a record timing compares: the baselines, and what may be the best by a quick look.

        A quick look proposes rungs only; which one is the best the record timing decides.
        """
        admissible = [r for r in self.rungs if r.admissible and not math.isnan(r.seconds)]
        quickest = sorted(admissible, key=lambda rung: rung.seconds)[:PROPOSED]
        return tuple(dict.fromkeys([*self.baselines, *(rung.name for rung in quickest)]))

    @property
    def undecided(self) -> Rung | None:
        """The quickest rung that may be a gain or none, where no rung surely is one."""
        best = self.best
        if best is None or best.name != EAGER:
            return None
        pool = [r for r in self.rungs if r.admissible and r.over_eager and r.effort is best.effort]
        found = [
            rung
            for rung in pool
            if rung.over_eager and rung.over_eager.low <= 1 < 1 + POSSIBLE < rung.over_eager.high
        ]
        return min(found, key=lambda rung: rung.seconds, default=None)

    def age(self) -> str:
        """`measured 12 min ago`; "" where it was measured just now."""
        seconds = time.time() - self.when
        if not self.when or seconds <= NEW_S:
            return ""
        ago = f"{seconds / 3600:.0f} h" if seconds > 7200 else f"{seconds / 60:.0f} min"
        return f"measured {ago} ago"

    def rung(self, name: str) -> Rung | None:
        return next((rung for rung in self.rungs if rung.name == name), None)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Ladder:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError."""
        rungs = tuple(
            Rung(
                **rung
                | {"over_eager": Ratio(**r) if (r := rung["over_eager"]) else None}
                | {"effort": Effort(rung["effort"])}
            )
            for rung in data["rungs"]
        )
        named = {
            "rungs": rungs,
            "notes": tuple(data["notes"]),
            "later": tuple(data["later"]),
            "effort": Effort(data["effort"]),
            "floor": Floor(**data["floor"]) if data["floor"] else None,
        }
        return Ladder(**{key: data[key] for key in data if key != "best"} | named)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return asdict(self) | {"best": best.name if best else None}


@dataclass(frozen=True)
class Gains:
    """What came from where. Ratios above 1 are faster; all from one interleaved run."""

    rung: str
    """The best one of the ladder."""
    free: Ratio
    """Eager over the best rung: no kernel needed."""
    kernel: Ratio
    """The best rung over the candidate: what the kernel adds."""
    end_to_end: Ratio
    """Eager over the candidate."""
    over_compile: Ratio | None
    """torch.compile's default over the candidate: the comparison of the literature."""


def gains(timing: Timing, ladder: Ladder) -> Gains | None:
    """Taken apart from a timing against `ladder.baselines`; None where an arm is missing.

    `free` is end to end over kernel, with the limits that `over_eager` gives it.
    """
    best = ladder.best
    if best is None or EAGER not in timing.ratios or best.name not in timing.ratios:
        return None
    end, kernel = timing.ratios[EAGER], timing.ratios[best.name]
    free = over_eager(timing, best.name, best.over_eager)
    return Gains(best.name, free, kernel, end, timing.ratios.get(COMPILE))


def confirmed(found: Ladder, timing: Timing) -> Ladder:
    """The ladder with the figures of a record timing; the same where the timing is of no record."""
    if timing.effort is not Effort.RECORD or EAGER not in timing.ratios:
        return found
    return replace(found, rungs=tuple(_confirmed(rung, timing) for rung in found.rungs))


def _confirmed(rung: Rung, timing: Timing) -> Rung:
    arm = timing.arm(rung.name)
    if arm is None or arm.failed or rung.name not in timing.ratios:
        return replace(rung, effort=Effort.QUICK)
    over = Ratio(1.0, 1.0, 1.0)
    if rung.name != EAGER:
        over = over_eager(timing, rung.name, rung.over_eager)
    return replace(rung, seconds=arm.median, over_eager=over, effort=Effort.RECORD)


def over_eager(timing: Timing, name: str, seen: Ratio | None) -> Ratio:
    """Eager's time over a baseline's in a timing of an attempt, from the attempt's over both.

    The limits are of the same rounds (those `seen` by the ladder where a record from before has
    none), widened to hold the value: medians of ratios do not multiply to the last digit.
    """
    value = timing.ratios[EAGER].value / timing.ratios[name].value
    beside = timing.free.get(name, seen)
    low, high = (beside.low, beside.high) if beside is not None else (value, value)
    return Ratio(value, min(low, value), max(high, value))


def ladder(
    referee: Referee,
    *,
    effort: Effort = Effort.QUICK,
    only: tuple[str, ...] = (),
    fresh: bool = False,
    emit: Emit = ignore,
    cache: Path | None = None,
    timer: Timer | None = None,
) -> Ladder:
    """Time every rung of a task, or read what was timed before.

    `only` names rungs; `fresh` measures again. On the CPU this takes some ten seconds, with
    torch.compile's autotuning on a GPU a minute or more. With a `timer` the processes are its own
    and stay warm for what it times next. Raises ForkServerError.
    """
    task = referee.task
    names = only or rungs_of(task, _convolves(referee))
    if not fresh and (known := _known(task, effort, [names], cache)) is not None:
        return known
    begun = time.perf_counter()
    if timer is not None:
        timer.make_room()
    names, left = names[: (fit := _fitting(referee, len(names)))], names[fit:]
    with ExitStack() as stack:
        if timer is None:
            timer = stack.enter_context(Timer(referee, names, emit))
        else:
            timer.turn_to(names)
        timing = timer.compare(effort)
        timed_arms = {
            name: timed_arm for name, timed_arm in timer.opened().items() if name in names
        }
        errors = _errors(timer, timed_arms)
    rungs = tuple(
        _rung(task, name, timing, timed_arms.get(name), errors.get(name)) for name in names
    )
    made = Ladder(
        task.digest,
        task.precision.value,
        timing.device,
        timing.versions,
        rungs,
        time.perf_counter() - begun,
        (*timing.notes, *([f"no room beside the others for {', '.join(left)}"] if left else [])),
        effort,
        floor=timing.floor,
        when=time.time(),
        busy=timing.busy,
    )
    _write(_file(task, effort, names, cache), made)
    return made


def measure_ladder(
    timer: Timer, *, whole: bool, fresh: bool = False, cache: Path | None = None
) -> Ladder:
    """The admitted rungs for a run to start from: those that open quickly, all where `whole`.

    What is known of all of them already is taken as it is, with its age in the notes, unless
    `fresh`. Raises ForkServerError.
    """
    referee = timer.referee
    every = rungs_of(referee.task, _convolves(referee))
    wanted = tuple(name for name in every if admitted(referee.task, name))
    found = None if fresh else _known(referee.task, Effort.QUICK, [wanted, every], cache)
    if found is None:
        names = wanted if whole else tuple(name for name in wanted if _opens_quickly(name))
        found = ladder(referee, only=names, fresh=fresh, cache=cache, timer=timer)
    if age := found.age():
        found = replace(found, notes=(*found.notes, f"{age}; --fresh measures again"))
    return replace(found, later=tuple(name for name in wanted if found.rung(name) is None))


def _opens_quickly(name: str) -> bool:
    """Not autotuning, and not compiling once more for what eager tells of already."""
    return not any(slow in name for slow in (AUTOTUNE, f"{COMPILE}+channels_last", "+fp32"))


def rungs_of(task: Task, convolves: bool) -> tuple[str, ...]:
    """Names of the rungs that make sense for a task on its device."""
    on_cuda = task.device is Device.CUDA
    modes = [EAGER, COMPILE, AUTOTUNE] + [GRAPHS] * on_cuda
    if convolves:
        modes += [f"{EAGER}+channels_last", f"{COMPILE}+channels_last"]
    options = []
    if on_cuda:
        # Where the policy admits TF32 it is on everywhere, and what fp32 costs is shown beside it.
        options = ["tf32"] if task.precision is Precision.MATCH else ["fp32"]
    variants = [f"{mode}+{option}" for option in options for mode in modes]
    if task.precision is Precision.BF16:
        variants += [f"{mode}+bf16" for mode in modes]
    return (*modes, *variants)


def admitted(task: Task, name: str) -> bool:
    """Whether the task's precision policy allows a rung."""
    options = name.split("+")[1:]
    if "tf32" in options:
        return task.precision is not Precision.MATCH
    return "bf16" not in options or task.precision is Precision.BF16


def _rung(
    task: Task,
    name: str,
    timing: Timing,
    timed_arm: TimedArm | None,
    errors: tuple[float, bool] | None,
) -> Rung:
    arm = timing.arm(name)
    assert arm is not None
    error, right = errors if errors is not None else (None, False)
    over = Ratio(1.0, 1.0, 1.0) if name == EAGER else timing.ratios.get(name)
    return Rung(
        name,
        arm.median,
        over if arm.samples else None,
        error,
        right,
        arm.compile_seconds,
        None if timed_arm is None else timed_arm.memory,
        admitted(task, name),
        arm.failed,
        timing.effort,
    )


def _fitting(referee: Referee, wanted: int) -> int:
    """How many rungs the device has room for at a time; one where it has for none: the timer then
    says so."""
    there, room = free(referee.task.device.value), referee.room
    return next((n for n in range(wanted, 1, -1) if room.timing(n) <= there), 1)


def _errors(timer: Timer, timed_arms: dict[str, TimedArm]) -> dict[str, tuple[float, bool]]:
    """Of each rung, on the same fresh inputs: the relative error, and the strict rule's word."""
    referee, batch, slot = timer.referee, timer.batch, 0
    referee.refill(batch, [slot])
    found = {}
    for name, timed_arm in timed_arms.items():
        batch.lay_out(name, [slot])
        try:
            timed_arm.session.block(batch.lent, batch.outputs, [(slot, slot)], deadline_s=120.0)
        except SessionEnded:
            continue
        passed = referee.check(batch, slot).passed
        right = referee.context.expected().precise
        found[name] = _relative_error(batch.outputs.tensors(slot), right), passed
    return found


def _relative_error(outputs: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The largest |x - r| / |r| of a tensor, where both are numbers."""
    errors = [0.0]
    for pair in zip(outputs, right, strict=True):
        if pair[0].is_floating_point() and pair[0].numel():
            apart = size = 0.0
            for x, r in in_blocks(*pair):
                apart += float((x.double() - r).nan_to_num().square().sum())
                size += float(r.nan_to_num().square().sum())
            errors.append(math.sqrt(apart) / max(math.sqrt(size), 1e-300))
    return max(errors)


def _convolves(referee: Referee) -> bool:
    try:
        work, _ = count(referee.task, referee.fork_server)
    except TaskError:
        return False
    return any("conv" in name for name in work.operators)


def _known(
    task: Task, effort: Effort, sets: Iterable[tuple[str, ...]], cache: Path | None
) -> Ladder | None:
    """What was measured for one of these sets of rungs, with as much care or more."""
    efforts = [Effort.RECORD] if effort is Effort.RECORD else [Effort.RECORD, Effort.QUICK]
    files = (_file(task, care, names, cache) for names in sets for care in efforts)
    found = filter(None, map(_read, files))
    return next((known for known in found if _serves(known, task.device)), None)


def _serves(known: Ladder, device: Device) -> bool:
    """Not what was undecided, or measured on a busy machine, long ago: it may tell more by now."""
    noisy = device is Device.CPU and known.busy >= CALM
    return not (noisy or known.undecided) or time.time() - known.when < AGAIN_S


def _file(task: Task, effort: Effort, names: tuple[str, ...], cache: Path | None) -> Path:
    import torch

    from cuagent import __version__

    about = (FORMAT, task.digest, describe(task.device), torch.__version__, __version__)
    key = hashlib.sha256(repr((about, effort.value, names)).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME")
    home = (Path(base) if base else Path.home() / ".cache") / "cuagent"
    return (cache or home) / f"ladder-{key}.json"


def _read(file: Path) -> Ladder | None:
    try:
        return Ladder.from_json(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, made: Ladder) -> None:
    """A cache that cannot be written only costs the next measurement."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(made.to_json()))
        partial.replace(file)
    except OSError:
        pass
