"""Measure the ladder: all ways to run the reference faster that need no kernel.

All rungs are timed in one interleaved run, each with its error against fp64. `optimize` starts from
the best one that the task's precision policy admits, and what a kernel adds is measured against it.
Rungs of another precision are shown for users who admit it, and are never the best. Results are
cached by task, device and versions. A result for more rungs, or of a higher effort, also serves a
request for less. On a CPU a result measured on a busy machine is valid for some minutes only.

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
from cuagent.measure.roofline.ceilings import QUIET_SHARE, REMEASURE_AFTER_S, describe
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
"""Format of the cache entries. Increase it when the measurement changes: older entries are then
ignored."""
AUTOTUNE, GRAPHS = "max-autotune-no-cudagraphs", "reduce-overhead"
POSSIBLE_GAIN = 0.05
"""Gain that makes a rung undecided if its interval includes both this gain and none."""
PROPOSED_RUNGS = 2
"""Number of rungs, the fastest of a quick timing, that a record timing always compares."""
RECENT_S = 60.0
"""Age in seconds from which a measurement is reported as an earlier one."""


@dataclass(frozen=True)
class Rung:
    """One way to run the reference."""

    name: str
    """`eager`, `compile`, `reduce-overhead`, ..., with options behind plus signs."""
    seconds: float
    """Seconds per call; nan if it does not run."""
    over_eager: Ratio | None
    """Eager's time over this rung's."""
    error: float | None
    """Largest relative error against fp64, over the output tensors: |x - r| / |r|."""
    right: bool
    """True if the strict rule accepts it in the task's precision."""
    opened_s: float | None
    """Seconds until the first call ended; graphs in torch.compile's cache are not compiled again.
    """
    memory: int | None
    """GPU memory of the process in bytes, context included."""
    admitted: bool
    """True if the task's precision policy admits it."""
    failed: str = ""
    effort: Effort = Effort.QUICK
    """Effort of the timing of `seconds` and `over_eager`."""

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
    """Duration of the measurement."""
    notes: tuple[str, ...] = ()
    effort: Effort = Effort.QUICK
    later: tuple[str, ...] = ()
    """Admitted rungs that are slow to open and were not measured yet."""
    floor: Floor | None = None
    """Floor of the task; None if its work could not be counted."""
    when: float = 0.0
    """Time of the measurement in seconds since the epoch."""
    busy: float = 0.0
    """Share of the processors that other processes used during the measurement."""

    @property
    def best(self) -> Rung | None:
        """Return the fastest admissible rung; eager unless another is certainly faster.

        If a record timing was made, only the rungs in it are compared.
        """
        every = [rung for rung in self.rungs if rung.admissible]
        recorded = [rung for rung in every if rung.effort is Effort.RECORD]
        admissible = recorded if any(rung.name == EAGER for rung in recorded) else every
        faster = [r for r in admissible if r.over_eager is not None and r.over_eager.low > 1]
        eager = [rung for rung in admissible if rung.name == EAGER]
        return min(faster or eager, key=lambda rung: rung.seconds, default=None)

    @property
    def baselines(self) -> tuple[str, ...]:
        """Return the baselines of an attempt: eager, compile and the best rung."""
        best = self.best
        return tuple(dict.fromkeys([EAGER, COMPILE, *([best.name] if best else [])]))

    @property
    def proposed(self) -> tuple[str, ...]:
        """Return the arms of a record timing: the baselines and the fastest rungs of a quick
        timing.

        A quick timing only proposes rungs; the record timing decides which is the best.
        """
        admissible = [r for r in self.rungs if r.admissible and not math.isnan(r.seconds)]
        fastest = sorted(admissible, key=lambda rung: rung.seconds)[:PROPOSED_RUNGS]
        return tuple(dict.fromkeys([*self.baselines, *(rung.name for rung in fastest)]))

    @property
    def undecided(self) -> Rung | None:
        """Return the fastest rung that may be a gain or not, if no rung certainly is a gain."""
        best = self.best
        if best is None or best.name != EAGER:
            return None
        pool = [r for r in self.rungs if r.admissible and r.over_eager and r.effort is best.effort]
        found = [
            rung
            for rung in pool
            if rung.over_eager
            and rung.over_eager.low <= 1 < 1 + POSSIBLE_GAIN < rung.over_eager.high
        ]
        return min(found, key=lambda rung: rung.seconds, default=None)

    def age(self) -> str:
        """Return e.g. `measured 12 min ago`; "" for a recent measurement."""
        seconds = time.time() - self.when
        if not self.when or seconds <= RECENT_S:
            return ""
        ago = f"{seconds / 3600:.0f} h" if seconds > 7200 else f"{seconds / 60:.0f} min"
        return f"measured {ago} ago"

    def rung(self, name: str) -> Rung | None:
        return next((rung for rung in self.rungs if rung.name == name), None)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Ladder:
        """Read the result of `to_json`. Raises KeyError, TypeError or ValueError."""
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
class Gain:
    """Parts of an attempt's gain. Ratios above 1 are faster; all are from one interleaved run."""

    rung: str
    """Name of the ladder's best rung."""
    free: Ratio
    """Eager over the best rung, which needs no kernel."""
    kernel: Ratio
    """Best rung over the candidate: the gain of the kernel."""
    end_to_end: Ratio
    """Eager over the candidate."""
    over_compile: Ratio | None
    """torch.compile's default over the candidate, which is the comparison in the literature."""


def gain_of(timing: Timing, ladder: Ladder) -> Gain | None:
    """Split the gain of a timing against `ladder.baselines`; None if an arm is missing.

    `free` is end to end over kernel, with the limits of `over_eager`.
    """
    best = ladder.best
    if best is None or EAGER not in timing.ratios or best.name not in timing.ratios:
        return None
    end, kernel = timing.ratios[EAGER], timing.ratios[best.name]
    free = over_eager(timing, best.name, best.over_eager)
    return Gain(best.name, free, kernel, end, timing.ratios.get(COMPILE))


def with_record_timing(found: Ladder, timing: Timing) -> Ladder:
    """Return the ladder with the figures of a record timing; unchanged for other timings."""
    if timing.effort is not Effort.RECORD or EAGER not in timing.ratios:
        return found
    return replace(found, rungs=tuple(_with_record_timing(rung, timing) for rung in found.rungs))


def _with_record_timing(rung: Rung, timing: Timing) -> Rung:
    arm = timing.arm(rung.name)
    if arm is None or arm.failed or rung.name not in timing.ratios:
        return replace(rung, effort=Effort.QUICK)
    over = Ratio(1.0, 1.0, 1.0)
    if rung.name != EAGER:
        over = over_eager(timing, rung.name, rung.over_eager)
    return replace(rung, seconds=arm.median, over_eager=over, effort=Effort.RECORD)


def over_eager(timing: Timing, name: str, seen: Ratio | None) -> Ratio:
    """Return eager's time over a baseline's, from a timing of an attempt against both.

    The limits are those of the same rounds, or `seen` by the ladder if an older record has none.
    They are widened to include the value, because medians of ratios do not multiply exactly.
    """
    value = timing.ratios[EAGER].value / timing.ratios[name].value
    beside = timing.free.get(name, seen)
    low, high = (beside.low, beside.high) if beside is not None else (value, value)
    return Ratio(value, min(low, value), max(high, value))


def time_rungs(
    referee: Referee,
    *,
    effort: Effort = Effort.QUICK,
    only: tuple[str, ...] = (),
    fresh: bool = False,
    emit: Emit = ignore,
    cache: Path | None = None,
    timer: Timer | None = None,
) -> Ladder:
    """Time every rung of a task, or read an earlier result from the cache.

    `only` names rungs; `fresh` ignores the cache. It takes some ten seconds on the CPU, and a
    minute or more with torch.compile's autotuning on a GPU. With a `timer`, its processes are used
    and stay warm for its next timing. Raises ForkServerError.
    """
    task = referee.task
    names = only or rungs_of(task, _convolves(referee))
    if not fresh and (known := _cached(task, effort, [names], cache)) is not None:
        return known
    begun = time.perf_counter()
    if timer is not None:
        timer.make_room()
    names, left = names[: (fit := _count_that_fits(referee, len(names)))], names[fit:]
    with ExitStack() as stack:
        if timer is None:
            timer = stack.enter_context(Timer(referee, names, emit))
        else:
            timer.set_baselines(names)
        timing = timer.compare(effort)
        timed_arms = {
            name: timed_arm for name, timed_arm in timer.opened().items() if name in names
        }
        errors = _errors_of(timer, timed_arms)
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
        (*timing.notes, *([f"not enough memory to time {', '.join(left)} too"] if left else [])),
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
    """Return the ladder that a run starts from: rungs that open quickly, or all if `whole`.

    Only admitted rungs are measured. A cached ladder is used unless `fresh`; its notes state its
    age. Raises ForkServerError.
    """
    referee = timer.referee
    every = rungs_of(referee.task, _convolves(referee))
    wanted = tuple(name for name in every if admitted(referee.task, name))
    found = None if fresh else _cached(referee.task, Effort.QUICK, [wanted, every], cache)
    if found is None:
        names = wanted if whole else first_rungs(referee)
        found = time_rungs(referee, only=names, fresh=fresh, cache=cache, timer=timer)
    if age := found.age():
        found = replace(found, notes=(*found.notes, f"{age}; --fresh measures again"))
    return replace(found, later=tuple(name for name in wanted if found.rung(name) is None))


def first_rungs(referee: Referee) -> tuple[str, ...]:
    """Return the admitted rungs that open quickly, which a run's ladder begins with."""
    every = rungs_of(referee.task, _convolves(referee))
    return tuple(n for n in every if admitted(referee.task, n) and _opens_quickly(n))


def _opens_quickly(name: str) -> bool:
    """Return False for autotuning and for variants of compile whose eager rung shows the gain."""
    return not any(slow in name for slow in (AUTOTUNE, f"{COMPILE}+channels_last", "+fp32"))


def rungs_of(task: Task, convolves: bool) -> tuple[str, ...]:
    """Return the names of the rungs that make sense for a task on its device."""
    on_cuda = task.device is Device.CUDA
    modes = [EAGER, COMPILE, AUTOTUNE] + [GRAPHS] * on_cuda
    if convolves:
        modes += [f"{EAGER}+channels_last", f"{COMPILE}+channels_last"]
    options = []
    if on_cuda:
        # If the policy admits TF32, it is on in all rungs, and fp32 variants show the cost of fp32.
        options = ["tf32"] if task.precision is Precision.MATCH else ["fp32"]
    variants = [f"{mode}+{option}" for option in options for mode in modes]
    if task.precision is Precision.BF16:
        variants += [f"{mode}+bf16" for mode in modes]
    return (*modes, *variants)


def admitted(task: Task, name: str) -> bool:
    """Return True if the task's precision policy admits a rung."""
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


def _count_that_fits(referee: Referee, wanted: int) -> int:
    """Return the number of rungs that fit on the device; 1 if none fits: the timer reports it."""
    there, room = free(referee.task.device.value), referee.room
    return next((n for n in range(wanted, 1, -1) if room.timing(n) <= there), 1)


def _errors_of(timer: Timer, timed_arms: dict[str, TimedArm]) -> dict[str, tuple[float, bool]]:
    """Return each rung's relative error and the strict rule's result, on the same fresh inputs."""
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
    """Return the largest |x - r| / |r| of a tensor, over elements that are numbers in both."""
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


def _cached(
    task: Task, effort: Effort, sets: Iterable[tuple[str, ...]], cache: Path | None
) -> Ladder | None:
    """Return the cached result for one of these sets of rungs, of this effort or a higher one."""
    efforts = [Effort.RECORD] if effort is Effort.RECORD else [Effort.RECORD, Effort.QUICK]
    files = (
        _file(task, cached_effort, names, cache) for names in sets for cached_effort in efforts
    )
    found = filter(None, map(_read, files))
    return next((known for known in found if _is_usable(known, task.device)), None)


def _is_usable(known: Ladder, device: Device) -> bool:
    """Return True if a cached result is usable: not undecided or from a busy machine, unless
    recent."""
    noisy = device is Device.CPU and known.busy >= QUIET_SHARE
    return not (noisy or known.undecided) or time.time() - known.when < REMEASURE_AFTER_S


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
    """Write the cache entry; if that fails, the next call measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(made.to_json()))
        partial.replace(file)
    except OSError:
        pass
