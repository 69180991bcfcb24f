"""Measure the ladder: all ways to run the reference faster that need no kernel.

All rungs are timed in one interleaved run, each with its error against fp64. `optimize` starts from
the best one that the task's precision policy admits, and what a kernel adds is measured against it.
All run under the task's own torch settings; a rung that needs others says which, and is the best
only if the task admits them. Results are
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
from typing import Any

from cuagent.arms import BENCHMARK, COMPILE, EAGER, GRAPH
from cuagent.events import Emit, ignore
from cuagent.measure.roofline.ceilings import QUIET_SHARE, REMEASURE_AFTER_S, describe
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import SUSPECT
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Precision, Task, TaskError, TorchSettings
from cuagent.task.memory import shortage
from cuagent.task.settings import arm_settings, baseline_settings
from cuagent.timing import Effort, Floor, Ratio, Timing
from cuagent.verify.referee import Referee
from cuagent.verify.rules.bounds import OWN_ARITHMETIC
from cuagent.verify.tensors import relative_error
from cuagent.verify.trace.reductions import product_kind
from cuagent.worker import SessionEnded

FORMAT = 7
"""Format of the cache entries. Increase it when the measurement changes: older entries are then
ignored."""
AUTOTUNE, GRAPHS = "max-autotune-no-cudagraphs", "reduce-overhead"
AUTOTUNE_GRAPHS = "max-autotune"
"""torch.compile's autotuning with CUDA graphs."""
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
    settings: str = ""
    """torch's settings that it needs, as one line; "" for the task's own."""

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
    settings: str = ""
    """torch's settings of eager and of all rungs that name no others; "" in earlier records."""
    own_settings: TorchSettings | None = None
    """The settings that the task's file left; None in earlier records."""

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
    def contract(self) -> str:
        """Return the baselines' settings, and the errors of eager and the best rung, as one line.

        It is "" for an earlier record.
        """
        if not self.settings:
            return ""
        shown = {rung.name: rung.error for rung in (self.rung(EAGER), self.best) if rung}
        text = ", ".join(
            f"{name} {error:.1e}" for name, error in shown.items() if error is not None
        )
        return f"baselines: {self.settings}" + (f"; error against fp64: {text}" if text else "")

    @property
    def baselines(self) -> tuple[str, ...]:
        """Return the baselines of an attempt: eager, compile and the best rung."""
        best = self.best
        return tuple(dict.fromkeys([EAGER, COMPILE, *([best.name] if best else [])]))

    @property
    def proposed(self) -> tuple[str, ...]:
        """Return the arms of a record timing: the baselines, the fastest rungs of a quick timing,
        and the rungs that are not timed yet.

        A quick timing only proposes rungs; the record timing decides which is the best.
        """
        admissible = [r for r in self.rungs if r.admissible and not math.isnan(r.seconds)]
        fastest = sorted(admissible, key=lambda rung: rung.seconds)[:PROPOSED_RUNGS]
        names = [*self.baselines, *(rung.name for rung in fastest), *self.untimed]
        return tuple(dict.fromkeys(names))

    @property
    def untimed(self) -> tuple[str, ...]:
        """Return the admissible rungs that are open but not timed yet."""
        untimed = (r for r in self.rungs if r.admissible and math.isnan(r.seconds))
        return tuple(rung.name for rung in untimed)

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

    @property
    def certain_floor(self) -> float:
        """Return the seconds that any correct implementation takes; 0 if that is not certain."""
        return self.floor.memory / SUSPECT if self.floor is not None else 0.0

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
            "own_settings": TorchSettings.from_json(own) if (own := data["own_settings"]) else None,
        }
        return Ladder(**{key: data[key] for key in data if key not in ("best", "contract")} | named)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        derived = {"best": best.name if best else None, "contract": self.contract}
        return asdict(self) | derived


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
    error: float | None = None
    """The best rung's relative error against fp64."""


def gain_of(timing: Timing, ladder: Ladder) -> Gain | None:
    """Split the gain of a timing against `ladder.baselines`; None if an arm is missing.

    `free` is end to end over kernel, with the limits of `over_eager`.
    """
    best = ladder.best
    if best is None or EAGER not in timing.ratios or best.name not in timing.ratios:
        return None
    end, kernel = timing.ratios[EAGER], timing.ratios[best.name]
    free = over_eager(timing, best.name, best.over_eager)
    return Gain(best.name, free, kernel, end, timing.ratios.get(COMPILE), best.error)


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
    names = only or _rungs(referee)
    if not fresh and (known := _cached(task, effort, [names], cache)) is not None:
        return known
    begun = time.perf_counter()
    if timer is not None:
        timer.release(names)
    names, left = names[: (fit := _count_that_fits(referee, len(names)))], names[fit:]
    with ExitStack() as stack:
        if timer is None:
            timer = stack.enter_context(Timer(referee, names, emit))
        timing = timer.compare(effort, names)
        timed_arms = {
            name: timed_arm for name, timed_arm in timer.opened().items() if name in names
        }
        errors = _errors_of(timer, timed_arms)
    rungs = tuple(
        _rung(referee, name, timing, timed_arms.get(name), errors.get(name)) for name in names
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
        settings=referee.settings_line,
        own_settings=referee.facts.settings,
    )
    _write(_file(task, effort, names, cache), made)
    return made


def measure_ladder(
    timer: Timer,
    *,
    whole: bool,
    wait_s: float | None = None,
    fresh: bool = False,
    cache: Path | None = None,
) -> Ladder:
    """Return the ladder that a run starts from: rungs that open quickly, or all if `whole`.

    Only admitted rungs are measured. With `wait_s`, those that still open in the background after
    so many seconds are left for later. A cached ladder is used unless `fresh`; its notes state its
    age. Raises ForkServerError.
    """
    referee = timer.referee
    every = _rungs(referee)
    wanted = tuple(name for name in every if admitted(referee.task, name))
    found = None if fresh else _cached(referee.task, Effort.QUICK, [wanted, every], cache)
    if found is None:
        names = wanted if whole else first_rungs(referee)
        late = timer.still_opening(names, wait_s) if wait_s is not None else ()
        names = tuple(name for name in names if name not in late)
        found = time_rungs(referee, only=names, fresh=fresh, cache=cache, timer=timer)
    if age := found.age():
        found = replace(found, notes=(*found.notes, f"{age}; --fresh measures again"))
    return replace(found, later=tuple(name for name in wanted if found.rung(name) is None))


def join_rungs(timer: Timer, found: Ladder, names: Sequence[str]) -> Ladder:
    """Return the ladder with these rungs opened and checked, but not timed.

    A record timing follows and times them beside the others, so no timing is made twice. Raises
    ForkServerError.
    """
    timed_arms = timer.open_untimed(names)
    errors, failed = _errors_of(timer, timed_arms), timer.failed
    joined = tuple(
        _untimed_rung(timer.referee.task, n, timed_arms.get(n), errors.get(n), failed.get(n, ""))
        for n in names
    )
    later = tuple(name for name in found.later if name not in names)
    return replace(found, rungs=(*found.rungs, *joined), later=later)


def _untimed_rung(
    task: Task,
    name: str,
    timed_arm: TimedArm | None,
    errors: tuple[float, bool] | None,
    failed: str,
) -> Rung:
    error, right = errors if errors is not None else (None, False)
    opened_s, memory = (None, None) if timed_arm is None else (timed_arm.opened_s, timed_arm.memory)
    failed = failed or ("" if errors is not None else "was not reached")
    policy = admitted(task, name)
    return Rung(name, math.nan, None, error, right, opened_s, memory, policy, failed)


def first_rungs(referee: Referee) -> tuple[str, ...]:
    """Return the admitted rungs that open quickly, which a run's ladder begins with."""
    every = _rungs(referee)
    return tuple(n for n in every if admitted(referee.task, n) and opens_quickly(n))


def opens_quickly(name: str) -> bool:
    """Return False for autotuning and for variants of compile whose eager rung shows the gain."""
    mode, *options = name.split("+")
    variant = mode == COMPILE and {"channels_last", BENCHMARK} & set(options)
    return not (mode in (AUTOTUNE, AUTOTUNE_GRAPHS) or AUTOTUNE in options or variant)


def rungs_of(task: Task, convolves: bool) -> tuple[str, ...]:
    """Return the names of the rungs that make sense for a task on its device."""
    on_cuda = task.device is Device.CUDA
    modes = [EAGER, COMPILE, AUTOTUNE]
    if on_cuda:
        modes += [GRAPHS, AUTOTUNE_GRAPHS, f"{EAGER}+{GRAPH}", f"{COMPILE}+{GRAPH}"]
    if convolves:
        modes += [f"{EAGER}+channels_last", f"{COMPILE}+channels_last"]
    if convolves and on_cuda:
        layouts = [EAGER, f"{EAGER}+channels_last", COMPILE]
        modes += [f"{mode}+{BENCHMARK}" for mode in layouts]
    options = [option for option in ("tf32", "bf16") if admitted(task, f"{EAGER}+{option}")]
    options = options if on_cuda else [option for option in options if option != "tf32"]
    return (*modes, *(f"{mode}+{option}" for option in options for mode in modes))


def _rungs(referee: Referee) -> tuple[str, ...]:
    """Return the rungs of a task, without those whose setting changes nothing: TF32 for none of its
    products, a choice of algorithms that is on already or that determinism forbids, and on a CPU
    autotuning without products, which are all that Inductor's C++ backend tunes.
    """
    operators = _operators(referee)
    own = baseline_settings(referee.facts.settings, referee.task.precision)
    kinds = set(filter(None, map(product_kind, operators)))
    differs = any(own.arithmetic(kind, referee.task.device) != "tf32" for kind in kinds)
    names = rungs_of(referee.task, any("conv" in name for name in operators))
    if own.cudnn_benchmark or own.cudnn_deterministic or own.deterministic != "off":
        names = tuple(name for name in names if BENCHMARK not in name)
    if referee.task.device is Device.CPU and operators and not (kinds or _attends(operators)):
        names = tuple(name for name in names if not name.startswith(AUTOTUNE_GRAPHS))
    return tuple(name for name in names if differs or not operators or "tf32" not in name)


def _attends(operators: Sequence[str]) -> bool:
    return any("attention" in name for name in operators)


def admitted(task: Task, name: str) -> bool:
    """Return True if the task's precision policy admits a rung."""
    options = name.split("+")[1:]
    if "tf32" in options:
        return task.precision not in OWN_ARITHMETIC
    return "bf16" not in options or task.precision is Precision.BF16


def _settings_of(referee: Referee, name: str) -> str:
    """Return the settings that a rung needs in addition to the task's own, or ""."""
    options = name.split("+")[1:]
    own, precision = referee.facts.settings, referee.task.precision
    line = arm_settings(own, precision, options).line(referee.task.device)
    parts = [line] if line != referee.settings_line else []
    return ", ".join(parts + ["bf16 autocast"] * ("bf16" in options))


def _rung(
    referee: Referee,
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
        admitted(referee.task, name),
        arm.failed,
        timing.effort,
        _settings_of(referee, name),
    )


def _count_that_fits(referee: Referee, wanted: int) -> int:
    """Return the number of rungs that fit on the device; 1 if none fits: the timer reports it."""
    room = referee.room
    there = room.available(referee.task.device.value)
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
        found[name] = relative_error(batch.outputs.tensors(slot), right), passed
    return found


def _operators(referee: Referee) -> tuple[str, ...]:
    """Return the names of the reference's operators; none if they could not be counted."""
    try:
        work, _ = count(referee.task, referee.fork_server)
    except TaskError:
        return ()
    return tuple(work.operators)


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
    """Return True if a cached result is usable: no rung failed for lack of memory, and not
    undecided or from a busy machine, unless recent."""
    if any(shortage(RuntimeError(rung.failed)) for rung in known.rungs if rung.failed):
        return False
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
