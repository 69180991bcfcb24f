"""Measure the ladder: time every way to run the reference faster without writing a kernel.

All rungs are timed in one interleaved run, each with its error against fp64. `optimize` starts from
the best rung that the task's precision policy admits, and the gain of a kernel is measured against
that rung. A rung runs under the task's own torch settings, unless it names others
(`Rung.settings`). Results are cached (`ladder_cache.py`): a result for more rungs, or of a higher
effort, also answers a request for less. `rungs.py` defines the data.

Invariant: a rung can only be the best one if it passes the strict rule in the policy's precision.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cuagent.arms import BENCHMARK, COMPILE, EAGER, GRAPH
from cuagent.events import Emit, ignore
from cuagent.measure import ladder_cache
from cuagent.measure.launches import graphs_may_gain
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import OperatorWork
from cuagent.measure.rungs import Ladder, Rung
from cuagent.measure.timing.ahead import Patience
from cuagent.measure.timing.parts import fit_together
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Precision, Task, TaskError
from cuagent.task.settings import arm_settings, baseline_settings
from cuagent.timing import Effort, Ratio, Timing
from cuagent.verify.referee import Referee
from cuagent.verify.rules.bounds import OWN_ARITHMETIC
from cuagent.verify.tensors import relative_error
from cuagent.verify.trace.reductions import product_kind
from cuagent.worker import SessionEnded
from cuagent.worker.channels_last import has_channels_last

AUTOTUNE, GRAPHS = "max-autotune-no-cudagraphs", "reduce-overhead"
AUTOTUNE_GRAPHS = "max-autotune"
"""Mode of torch.compile with autotuning and CUDA graphs."""
NO_ROOM = "not enough memory to time"
"""Beginning of the ladder's note that lists the rungs for which memory did not suffice."""
NO_GRAPHS = (
    "CUDA graphs are not timed: {why}a call of this size takes much longer than its launches"
)
"""Note on a ladder in which rungs with CUDA graphs were left out; `why` is a further reason or
""."""
GRAPHS_HOLD_MEMORY = "each holds the memory of further calls, and "


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
    """Time all rungs of a task, or return an earlier result from the cache.

    `only` names the rungs to time; () means all that make sense. `fresh` ignores the cache. `cache`
    is its folder. Takes some ten seconds on the CPU, and a minute or more with torch.compile's
    autotuning on a GPU. A given `timer` is used, and its processes stay warm for its next timing.
    Raises ForkServerError.
    """
    task = referee.task
    names = only or _rungs(referee)
    if not fresh and (known := ladder_cache.cached(task, effort, [names], cache)) is not None:
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
        (
            *timing.notes,
            *([f"{NO_ROOM} {', '.join(left)} too"] if left else []),
            *_note_on_graphs(referee),
        ),
        effort,
        floor=timing.floor,
        when=time.time(),
        busy=timing.busy,
        settings=referee.settings_line,
        own_settings=referee.facts.settings,
    )
    ladder_cache.write(task, effort, names, cache, made)
    return made


def measure_ladder(
    timer: Timer,
    *,
    whole: bool,
    wait_s: float | None = None,
    fresh: bool = False,
    cache: Path | None = None,
    without: Collection[str] = (),
) -> Ladder:
    """Return the ladder at the start of a run: the rungs whose processes start quickly, or all if
    `whole`.

    Only rungs that the precision policy admits are measured. With `wait_s`, rungs that are still
    starting in the background after that many seconds are left out, as those in `without`.
    `Ladder.later` names all admitted rungs that were not measured. A cached ladder is used unless
    `fresh`; its notes state its age. Raises ForkServerError.
    """
    referee = timer.referee
    every = _rungs(referee)
    wanted = tuple(name for name in every if admitted(referee.task, name))
    found = None
    if not fresh:
        found = ladder_cache.cached(referee.task, Effort.QUICK, [wanted, every], cache)
    if found is None:
        names = wanted if whole else first_rungs(referee)
        late = timer.still_opening(names, Patience(wait_s)) if wait_s is not None else ()
        names = tuple(name for name in names if name not in (*late, *without))
        found = time_rungs(referee, only=names, fresh=fresh, cache=cache, timer=timer)
    if age := found.age():
        found = replace(found, notes=(*found.notes, f"{age}; --fresh measures again"))
    return replace(found, later=tuple(name for name in wanted if found.rung(name) is None))


def join_rungs(timer: Timer, found: Ladder, names: Sequence[str]) -> Ladder:
    """Return the ladder extended by the rungs `names`, which are started and checked for errors but
    not timed.

    The record timing that follows times them, so no rung is timed twice. Raises ForkServerError.
    """
    timed_arms: dict[str, TimedArm] = {}
    errors: dict[str, tuple[float, bool]] = {}
    together = fit_together(timer.referee, len(names), len(names))
    groups = [tuple(names)] if together else [(name,) for name in names]
    for group in groups:
        with timer.untimed(group) as opened:
            timed_arms |= opened
            errors |= _errors_of(timer, opened)
    failed = timer.failed
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


def rungs_to_open(referee: Referee, *, fresh: bool, cache: Path | None = None) -> tuple[str, ...]:
    """Return the names of the rungs that `measure_ladder` will time first; () if it will use a
    cached ladder."""
    every = _rungs(referee)
    wanted = tuple(name for name in every if admitted(referee.task, name))
    names = tuple(name for name in wanted if opens_quickly(name))
    asked = [wanted, every, names]
    is_known = not fresh and ladder_cache.cached(referee.task, Effort.QUICK, asked, cache)
    return () if is_known else names


def first_rungs(referee: Referee) -> tuple[str, ...]:
    """Return the names of the rungs that a run times first: those admitted that start quickly."""
    every = _rungs(referee)
    return tuple(n for n in every if admitted(referee.task, n) and opens_quickly(n))


def opens_quickly(name: str) -> bool:
    """Return True unless the rung starts so slowly that a run's first ladder leaves it out.

    Slow are rungs with autotuning, and torch.compile with channels_last or cudnn_benchmark. The
    gain of these two options can be seen in the eager rungs.
    """
    mode, *options = name.split("+")
    variant = mode == COMPILE and {"channels_last", BENCHMARK} & set(options)
    return not (mode in (AUTOTUNE, AUTOTUNE_GRAPHS) or AUTOTUNE in options or variant)


def rungs_of(
    task: Task, convolves: bool, graphs: bool = True, layouts: bool = True
) -> tuple[str, ...]:
    """Return the names of the rungs that make sense for a task on its device.

    `convolves`: the reference has convolutions. `graphs`: include rungs with CUDA graphs on a GPU.
    `layouts`: include channels_last for a reference with convolutions.
    """
    on_cuda = task.device is Device.CUDA
    modes = [EAGER, COMPILE, AUTOTUNE]
    if on_cuda and graphs:
        modes += [GRAPHS, AUTOTUNE_GRAPHS, f"{EAGER}+{GRAPH}", f"{COMPILE}+{GRAPH}"]
    if convolves and layouts:
        modes += [f"{EAGER}+channels_last", f"{COMPILE}+channels_last"]
    if convolves and on_cuda:
        benchmarked = [EAGER, *[f"{EAGER}+channels_last"] * layouts, COMPILE]
        modes += [f"{mode}+{BENCHMARK}" for mode in benchmarked]
    options = [option for option in ("tf32", "bf16") if admitted(task, f"{EAGER}+{option}")]
    options = options if on_cuda else [option for option in options if option != "tf32"]
    return (*modes, *(f"{mode}+{option}" for option in options for mode in modes))


def _note_on_graphs(referee: Referee) -> list[str]:
    """Return [note] if CUDA graphs were left out of a GPU's ladder, else []."""
    if referee.task.device is not Device.CUDA or _has_graphs(referee, _operators(referee)):
        return []
    return [NO_GRAPHS.format(why=GRAPHS_HOLD_MEMORY if referee.large else "")]


def _has_graphs(referee: Referee, operators: Mapping[str, OperatorWork]) -> bool:
    """Return True if rungs with CUDA graphs are timed.

    They are left out for a large task, because graphs do not release their memory between two
    calls.
    """
    return not referee.large and graphs_may_gain(referee.facts.call_s, operators)


def _rungs(referee: Referee) -> tuple[str, ...]:
    """Return the names of a task's rungs, without those whose option would change nothing.

    Left out are TF32 if no product would use it; channels_last if it changes no weight, as for
    Conv1d; cudnn_benchmark if it is on already or if determinism forbids it; CUDA graphs for calls
    that take much longer than their launches; and on a CPU autotuning without products, since
    Inductor's C++ backend tunes only products.
    """
    operators = _operators(referee)
    own = baseline_settings(referee.facts.settings, referee.task.precision)
    kinds = set(filter(None, map(product_kind, operators)))
    differs = any(own.arithmetic(kind, referee.task.device) != "tf32" for kind in kinds)
    convolves = any("conv" in name for name in operators)
    layouts = has_channels_last([leaf.shape for leaf in referee.facts.layouts.state.leaves])
    names = rungs_of(referee.task, convolves, _has_graphs(referee, operators), layouts)
    if own.cudnn_benchmark or own.cudnn_deterministic or own.deterministic != "off":
        names = tuple(name for name in names if BENCHMARK not in name)
    if referee.task.device is Device.CPU and operators and not (kinds or _attends(operators)):
        names = tuple(name for name in names if not name.startswith(AUTOTUNE_GRAPHS))
    return tuple(name for name in names if differs or not operators or "tf32" not in name)


def _attends(operators: Iterable[str]) -> bool:
    return any("attention" in name for name in operators)


def admitted(task: Task, name: str) -> bool:
    """Return True if the task's precision policy permits the rung's options (`tf32`, `bf16`)."""
    options = name.split("+")[1:]
    if "tf32" in options:
        return task.precision not in OWN_ARITHMETIC
    return "bf16" not in options or task.precision is Precision.BF16


def _settings_of(referee: Referee, name: str) -> str:
    """Return the torch settings in which a rung differs from the task's own, as text; "" if
    none."""
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
        arm.in_a_row_s,
    )


def _count_that_fits(referee: Referee, wanted: int) -> int:
    """Return how many of `wanted` rungs fit into the device's memory at the same time, at least 1.

    If not even one fits, the timer reports the lack of memory.
    """
    room = referee.room
    there = room.available(referee.task.device.value)
    return next((n for n in range(wanted, 1, -1) if room.timing(n) <= there), 1)


def _errors_of(timer: Timer, timed_arms: dict[str, TimedArm]) -> dict[str, tuple[float, bool]]:
    """Return for each rung its relative error against fp64, and whether it passes the strict rule.

    All rungs get the same fresh inputs. A rung whose process ends is left out.
    """
    referee, batch, slot = timer.referee, timer.batch, 0
    found = {}
    with timer.opening() as give_way:
        referee.batches.refill(batch, [slot])
        for name, timed_arm in timed_arms.items():
            give_way()
            batch.lay_out(name, [slot])
            try:
                timed_arm.session.block(batch.lent, batch.outputs, [(slot, slot)], deadline_s=120.0)
            except SessionEnded:
                continue
            passed = referee.batches.check(batch, slot).passed
            right = referee.context.expected().precise
            found[name] = relative_error(batch.outputs.tensors(slot), right), passed
    return found


def _operators(referee: Referee) -> Mapping[str, OperatorWork]:
    """Return the reference's counted operators by name; {} if they could not be counted."""
    try:
        work, _ = count(referee.task, referee.fork_server)
    except TaskError:
        return {}
    return work.operators
