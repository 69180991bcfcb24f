"""Data of the ladder: its rungs, the best of them, and the gain of an attempt over the best rung.

Pure data and arithmetic; `ladder.py` measures them. The best rung is the fastest that passes the
strict rule and that the task's precision policy admits; kernels are compared with it. The chosen
rung is used if there is no kernel: the best, or an equal one that needs less of the host's time.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from cuagent.arms import BENCHMARK, COMPILE, EAGER
from cuagent.measure.roofline.model import SUSPECT
from cuagent.task import TorchSettings
from cuagent.timing import Effort, Floor, Ratio, Timing

POSSIBLE_GAIN = 0.05
"""Gain over eager (0.05 is 5 %). A rung is undecided if its interval includes both this gain and
none."""
PROPOSED_RUNGS = 2
"""Number of the fastest rungs of a quick timing that a record timing times again."""
EQUAL = 0.05
"""A rung may replace the best one if it is slower by at most this share."""
LIGHTER = 0.2
"""Least share by which the best rung must take longer in a row than the rung that replaces it."""
TUNED_GAIN = 0.02
"""cudnn.benchmark is not tried in compiled code if it surely gains less than this share in eager
code. In 9 of 16 modules (H200) it gained at most 1.3 % there by its upper limit, and -0.6 to 0.2 %
in compiled code; where it gained more, up to 237 %."""
NOT_TUNED = "not timed, because cudnn.benchmark gains nothing without a compiler"
"""End of the ladder's note on rungs that were left out for this reason."""
RECENT_S = 60.0
"""Age in seconds from which the report states how old a ladder is."""


@dataclass(frozen=True)
class Rung:
    """One way to run the reference without a kernel, with its measured time and error."""

    name: str
    """Mode, then options after plus signs: `eager`, `compile+tf32`, `reduce-overhead`."""
    seconds: float
    """Seconds per call; nan if it was not timed."""
    over_eager: Ratio | None
    """Eager's time divided by this rung's time; above 1 the rung is faster."""
    error: float | None
    """Largest relative error against fp64, over the output tensors: |x - r| / |r|."""
    right: bool
    """True if the rung's output passes the strict rule in the task's precision."""
    opened_s: float | None
    """Seconds from the start of its process to the end of its first call. Graphs in torch.compile's
    cache are not compiled again in this time."""
    memory: int | None
    """GPU memory of the rung's process in bytes, CUDA context included."""
    admitted: bool
    """True if the task's precision policy permits the rung's options."""
    failed: str = ""
    effort: Effort = Effort.QUICK
    """Effort of the timing that gave `seconds` and `over_eager`."""
    settings: str = ""
    """torch's settings in which the rung differs from the task's own, as one line; "" if none."""
    in_a_row_s: float | None = None
    """Seconds per call of calls without a pause between them, the host's time included; None if not
    timed."""

    @property
    def admissible(self) -> bool:
        return self.admitted and self.right and not self.failed


@dataclass(frozen=True)
class Ladder:
    """The rungs of one task on one device."""

    task: str
    """Digest of the task."""
    precision: str
    device: str
    versions: dict[str, str]
    rungs: tuple[Rung, ...]
    seconds: float
    """Seconds that measuring the whole ladder took."""
    notes: tuple[str, ...] = ()
    effort: Effort = Effort.QUICK
    later: tuple[str, ...] = ()
    """Names of admitted rungs that were not measured yet, because their processes start slowly."""
    floor: Floor | None = None
    """Floor of the task; None if its work could not be counted."""
    when: float = 0.0
    """Time of the measurement in seconds since the epoch."""
    busy: float = 0.0
    """Share of the processors that other processes used during the measurement."""
    settings: str = ""
    """torch's settings of eager, and of all rungs without `Rung.settings`; "" in records of old
    versions."""
    own_settings: TorchSettings | None = None
    """torch's settings after the task's file was imported; None in records of old versions."""

    @property
    def best(self) -> Rung | None:
        """Return the fastest admissible rung; eager unless another is certainly faster.

        If there was a record timing, only its rungs are compared.
        """
        return min(self._candidates, key=lambda rung: rung.seconds, default=None)

    @property
    def chosen(self) -> Rung | None:
        """Return the rung to use if no kernel is: of those about as fast as the best, the one that
        takes the least time in a row.

        A loop of small kernels waits for the host, whose time the best rung's time does not show.
        """
        best = self.best
        if best is None or best.in_a_row_s is None:
            return best
        lighter = [
            (rung.in_a_row_s, rung)
            for rung in self._candidates
            if rung.in_a_row_s is not None
            and rung.seconds <= best.seconds * (1 + EQUAL)
            and rung.in_a_row_s * (1 + LIGHTER) < best.in_a_row_s
        ]
        return min(lighter, key=lambda pair: pair[0], default=(0.0, best))[1]

    @property
    def _candidates(self) -> list[Rung]:
        """Return the rungs of which the best is chosen: those certainly faster than eager, or eager
        alone."""
        every = [rung for rung in self.rungs if rung.admissible]
        recorded = [rung for rung in every if rung.effort is Effort.RECORD]
        admissible = recorded if any(rung.name == EAGER for rung in recorded) else every
        faster = [r for r in admissible if r.over_eager is not None and r.over_eager.low > 1]
        eager = [rung for rung in admissible if rung.name == EAGER]
        return faster or eager

    @property
    def contract(self) -> str:
        """Return one line with the baselines' torch settings and the errors of eager and of the
        best rung.

        It is "" for records of old versions.
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
        """Return the rungs that attempts are timed against: eager, compile and the best rung."""
        best = self.best
        return tuple(dict.fromkeys([EAGER, COMPILE, *([best.name] if best else [])]))

    @property
    def proposed(self) -> tuple[str, ...]:
        """Return the rungs for a record timing: the baselines, the chosen one, the fastest of a
        quick timing, and those not timed yet.

        A quick timing only proposes rungs; the record timing decides which is the best.
        """
        admissible = [r for r in self.rungs if r.admissible and not math.isnan(r.seconds)]
        fastest = sorted(admissible, key=lambda rung: rung.seconds)[:PROPOSED_RUNGS]
        chosen = [self.chosen.name] if self.chosen is not None else []
        names = [*self.baselines, *chosen, *(rung.name for rung in fastest), *self.untimed]
        return tuple(dict.fromkeys(names))

    @property
    def untimed(self) -> tuple[str, ...]:
        """Return the admissible rungs that were started and checked but not timed yet."""
        untimed = (r for r in self.rungs if r.admissible and math.isnan(r.seconds))
        return tuple(rung.name for rung in untimed)

    @property
    def undecided(self) -> Rung | None:
        """Return the fastest rung whose interval includes both no gain and a gain of
        `POSSIBLE_GAIN`.

        None if there is none, or if another rung is certainly faster than eager.
        """
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
    def beats_floor(self) -> bool:
        """Return True if a rung took less time than the roofline allows."""
        floor = self.floor.seconds if self.floor is not None else 0.0
        return any(0 < rung.seconds < floor for rung in self.rungs)

    @property
    def certain_floor(self) -> float:
        """Return the seconds that every correct implementation takes at least; 0 if no bound is
        certain."""
        return self.floor.memory / SUSPECT if self.floor is not None else 0.0

    def age(self) -> str:
        """Return the ladder's age in words, such as `measured 12 min ago`; "" for a recent
        measurement."""
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


def without_pointless(found: Ladder) -> Ladder:
    """Return the ladder without those later rungs that cannot gain by what is measured; a note
    names them.

    These are compiled code under cudnn.benchmark, if that chooses no faster convolution in eager
    code, in either memory format. The compiler calls the same convolutions.
    """
    names = [name for name in found.later if _is_pointless(found, name)]
    if not names:
        return found
    later = tuple(name for name in found.later if name not in names)
    return replace(found, later=later, notes=(*found.notes, f"{', '.join(names)}: {NOT_TUNED}"))


def _is_pointless(found: Ladder, name: str) -> bool:
    mode, *options = name.split("+")
    if mode != COMPILE or BENCHMARK not in options:
        return False
    plain = [option for option in options if option != BENCHMARK]
    pairs = [
        ["+".join([EAGER, *layout, *tuned, *plain]) for tuned in ([], [BENCHMARK])]
        for layout in ([], ["channels_last"])
    ]
    known = [pair for pair in pairs if found.rung(pair[0]) or found.rung(pair[1])]
    return found.rung(pairs[0][1]) is not None and all(
        _gains_nothing(found, *pair) for pair in known
    )


def _gains_nothing(found: Ladder, plain: str, tuned: str) -> bool:
    """Return True if the rung `tuned` surely is not faster than `plain` by `TUNED_GAIN`."""
    before, after = found.rung(plain), found.rung(tuned)
    if before is None or after is None or before.over_eager is None or after.over_eager is None:
        return False
    known = before.admissible and after.admissible
    return known and after.over_eager.high <= (1 + TUNED_GAIN) * before.over_eager.value


@dataclass(frozen=True)
class Gain:
    """Gain of an attempt, split into the part without a kernel and the kernel's part.

    Ratios are times of a baseline over times of the candidate or rung; above 1 is a gain. All are
    from one interleaved run.
    """

    rung: str
    """Name of the best rung."""
    free: Ratio
    """Eager's time over the best rung's: the gain that needs no kernel."""
    kernel: Ratio
    """Best rung's time over the candidate's: the gain of the kernel."""
    end_to_end: Ratio
    """Eager's time over the candidate's."""
    over_compile: Ratio | None
    """Time of torch.compile's default mode over the candidate's, the comparison used in the
    literature."""
    error: float | None = None
    """The best rung's relative error against fp64."""


def gain_of(timing: Timing, ladder: Ladder) -> Gain | None:
    """Return the gain of a timed attempt over the ladder's baselines; None if a baseline was not
    timed.

    `free` is the end-to-end ratio over the kernel's ratio; `over_eager` computes its limits.
    """
    best = ladder.best
    if best is None or EAGER not in timing.ratios or best.name not in timing.ratios:
        return None
    end, kernel = timing.ratios[EAGER], timing.ratios[best.name]
    free = over_eager(timing, best.name, best.over_eager)
    return Gain(best.name, free, kernel, end, timing.ratios.get(COMPILE), best.error)


def with_earlier(found: Ladder, earlier: Ladder | None) -> Ladder:
    """Return the ladder `found`, extended by rungs that only the earlier ladder of the same task
    has.

    A later ladder lacks rungs if memory did not suffice for all.
    """
    rungs = earlier.rungs if earlier is not None else ()
    kept = tuple(rung for rung in rungs if found.rung(rung.name) is None)
    if not kept:
        return found
    later = tuple(name for name in found.later if name not in {rung.name for rung in kept})
    return replace(found, rungs=(*found.rungs, *kept), later=later)


def with_record_timing(found: Ladder, timing: Timing) -> Ladder:
    """Return the ladder with its rungs' figures replaced by those of a record timing.

    A timing of another effort changes nothing.
    """
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
    row = rung.in_a_row_s if arm.in_a_row_s is None else arm.in_a_row_s
    return replace(rung, seconds=arm.median, over_eager=over, effort=Effort.RECORD, in_a_row_s=row)


def over_eager(timing: Timing, name: str, seen: Ratio | None) -> Ratio:
    """Return eager's time over the baseline `name`'s, from a timing of an attempt against both.

    The limits are those in `timing.free`. For old records without them they are those of `seen`,
    the ladder's ratio. They are widened to include the value, because medians of ratios do not
    multiply exactly.
    """
    value = timing.ratios[EAGER].value / timing.ratios[name].value
    beside = timing.free.get(name, seen)
    low, high = (beside.low, beside.high) if beside is not None else (value, value)
    return Ratio(value, min(low, value), max(high, value))
