"""Choose the next candidate from the outcomes of the earlier ones.

The choice is a pure function of the task and the outcomes, so that a run can be replayed or resumed
from its conversation. The first candidate has all rewrites and fusions that should help. Each later
one changes a single option of the best accepted candidate, in the order of expected gain. After a
rejection, single kernels are removed first. The search ends when the measurements show that no
further candidate can be a clear gain (`Bounds`). Invariant: no two candidates have the same text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.candidate import Candidate, make_candidate
from cuagent.expert.capture.subject import Subject
from cuagent.expert.options import Options
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.repairs import repairs
from cuagent.timing import Ratio

MAX_ATTEMPTS = 6
"""Largest number of candidates in one run."""
CLEAR_GAIN = 1.05
"""Speedup over every baseline that counts as a clear gain, by the lower confidence limits."""
SCHEDULE_REACH = 2.0
"""Largest speedup that another schedule of the same kernels can bring.

For example, all four schedules of a bf16 RMSNorm ran at 0.14 times the speed of the best rung.
"""
NEAR_FLOOR = 1.15
"""Ratio of a candidate's time to the floor below which no other schedule is tried.

Another schedule could gain only a few percent, and costs a verdict and a timing.
"""
OWN_SHARE = 0.05
"""Least share of a candidate's time in its generated kernels for which other schedules are
tried.
"""
IDLE_TRIES = {"cpu": 1, "cuda": 2}
"""Number of consecutive candidates without a sure gain after which the search ends, by device.

On a CPU each costs more time than its choices have gained in the examples. On an H200 each takes 8
to 14 seconds, and the third was the slowest of the search in both problems whose steps were timed.
"""
TRYING_S = 30.0
"""Seconds that candidates without a sure gain may take to be judged, if the best one is a clear
gain. Other tiles gained 5 % in 3 of 18 attempts on an H200, and a verdict on gigabytes takes half a
minute."""


LAUNCH_SECONDS = 12e-6
"""Host time in seconds of one kernel launch from Python, or of one call of torch. A MobileNet of 28
launches took 0.34 ms (H100 host)."""
COPIED_BYTES_PER_SECOND = 1.3e12
"""Rate at which a GPU copies the arguments and results of a CUDA graph.

A copy reads and writes each byte. An H100 took 149 us for the 206 MB of a bottleneck block, whose
graph ran at half the speed of its launches.
"""
LAUNCH_SHARE = 1 / 3
"""Least share of launches in a candidate's time for which a CUDA graph is tried first."""
LONG_CALL_SECONDS = 5e-3
"""Seconds per call of the module above which the time of kernel launches does not matter."""
FEW_CONVOLUTIONS = 3
"""Largest number of convolutions in a candidate for which other memory layouts are tried.

In networks with more convolutions, layouts change too often.
"""
NO_MEMORY = Memory()
AUTOTUNE = "max-autotune-no-cudagraphs"
COMPILE_MODES = ("reduce-overhead", "max-autotune", AUTOTUNE)
"""Names of rungs that are modes of torch.compile."""


@dataclass(frozen=True)
class Outcome:
    """Result of one candidate. `ratios` are the baselines' times over its time, at quick effort."""

    candidate: Candidate
    accepted: bool
    reason: str
    attempt: int | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    broken_files: tuple[str, ...] = ()
    """Paths of the kernel files that did not compile."""
    seconds: float | None = None
    """Candidate's seconds per call; None if it was not timed."""
    own_share: float | None = None
    """Share of the candidate's time in its generated kernels; None without a profile."""
    judged_s: float = 0.0
    """Seconds that its verdict and timing took; 0 if they are not known."""

    @property
    def lower_limit(self) -> float:
        """Smallest lower confidence limit of the speedups over the baselines; 0 if it was not
        timed.
        """
        return min((r.low for r in self.ratios.values()), default=0.0)

    @property
    def speedup(self) -> float:
        """Candidate's smallest speedup over a baseline; 0 if it was not timed."""
        return min((r.value for r in self.ratios.values()), default=0.0)

    @property
    def is_clear_gain(self) -> bool:
        """True if the speedup over every baseline is at least CLEAR_GAIN, by the lower confidence
        limits.
        """
        return self.lower_limit >= CLEAR_GAIN

    @property
    def is_likely_gain(self) -> bool:
        """True if the measured speedup over every baseline is at least CLEAR_GAIN; limits are not
        considered.
        """
        return self.speedup >= CLEAR_GAIN

    @property
    def is_slower(self) -> bool:
        """True if the candidate is slower than eager with certainty."""
        return self.is_slower_than("eager")

    def is_slower_than(self, baseline: str) -> bool:
        """Return True if the candidate is slower than `baseline` with certainty."""
        ratio = self.ratios.get(baseline)
        return ratio is not None and ratio.high < 1


@dataclass(frozen=True)
class Bounds:
    """Measurements of the ladder that limit the gain of any kernel."""

    rung: str = ""
    """Name of the ladder's best rung; "" without a ladder."""
    rung_seconds: float = math.inf
    """Seconds per call of the best rung."""
    floor: float = 0.0
    """Least seconds per call in which the inputs and outputs can be moved; 0 if that is not
    certain.
    """
    in_tf32: bool = False
    """True if the reference's products and convolutions run in TF32, in a network most of them.

    This is read from the names of its kernels in a profile; without a profile, from its error.
    """
    is_exact: bool = False
    """True if the error of the reference's result is that of float32 arithmetic.

    Its convolutions then do not run in TF32, unless a later sum over many positions hides their
    error.
    """

    @property
    def rung_is_optimal(self) -> bool:
        """True if no kernel can be a clear gain over the best rung."""
        return self._is_optimal(self.rung_seconds)

    def end_search(self, best: Outcome) -> bool:
        """Return True if no other candidate can be a clear gain over `best`."""
        return best.seconds is not None and self._is_optimal(best.seconds)

    def schedules_may_win(self, best: Outcome) -> bool:
        """Return True if another schedule of the kernels of `best` may be faster than the best
        rung.
        """
        if best.own_share is not None and best.own_share < OWN_SHARE:
            return False
        if best.seconds is not None and best.seconds < NEAR_FLOOR * self.floor:
            return False
        rung = best.ratios.get(self.rung)
        return rung is None or rung.high * SCHEDULE_REACH >= 1

    def _is_optimal(self, seconds: float) -> bool:
        return self.floor > 0 and seconds < CLEAR_GAIN * self.floor


@dataclass(frozen=True)
class Proposal:
    """A candidate to try next, and the reason."""

    candidate: Candidate
    why: str
    """Difference to the best candidate, as part of a sentence."""


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the accepted outcome with the highest lower limit of its ratios; None without one.

    The middle of a wide interval would overstate the speed.
    """
    return max((o for o in outcomes if o.accepted), key=lambda o: o.lower_limit, default=None)


def propose(
    subject: Subject,
    outcomes: Sequence[Outcome],
    bounds: Bounds = Bounds(),
    memory: Memory = NO_MEMORY,
) -> Proposal | None:
    """Return the next candidate to try; None if no further change should help.

    `memory` has the options to try first, and the options to omit.
    """
    best = best_of(outcomes)
    if len(outcomes) >= MAX_ATTEMPTS or bounds.rung_is_optimal:
        return None
    if best is not None and (bounds.end_search(best) or _is_idle(subject, outcomes)):
        return None
    seen = {tuple(sorted(o.candidate.files.items())) for o in outcomes}
    for options, why in _choices(subject, outcomes, bounds, memory):
        if outcomes and options in memory.slower:
            continue
        candidate = _made(subject, options)
        if candidate is not None and tuple(sorted(candidate.files.items())) not in seen:
            return Proposal(candidate, why)
    return None


def _made(subject: Subject, options: Options) -> Candidate | None:
    """Return `make_candidate(subject, options)`, which is computed once: the search compares
    proposals for several possible outcomes, and a large network takes seconds.
    """
    if options not in subject.made:
        subject.made[options] = make_candidate(subject, options)
    found: Candidate | None = subject.made[options]
    return found


def _first_options(subject: Subject, bounds: Bounds) -> Options:
    """Return the options of the first candidate: the precision of convolutions is the reference's.

    cuDNN computes some convolutions in float32 although TF32 is admitted. The candidate is judged
    by the reference's error, so it must then compute them in float32 precision too. The error of a
    network of many convolutions does not tell the precision of each.
    """
    options = Options(tf32_few_channels=bounds.in_tf32)
    if not bounds.is_exact or not subject.target.tf32_convolutions:
        return options
    made = _made(subject, options)
    few = made is not None and 0 < made.convolutions <= FEW_CONVOLUTIONS
    return replace(options, exact_convolutions=True) if few else options


def _graph_comes_first(subject: Subject, options: Options, bounds: Bounds) -> bool:
    """Return True if the first candidate is to replay its launches as a CUDA graph.

    They then take longer than the best rung, or a large share of its time where it has a graph.
    False for a training step, and without a time of the best rung.
    """
    if subject.device != "cuda" or subject.backward is not None:
        return False
    if bounds.rung_seconds > LONG_CALL_SECONDS:
        return False
    made = _made(subject, options)
    share = LAUNCH_SHARE if _has_graph(bounds.rung) else 1.0
    return made is not None and _saved_by_graph(made) > share * bounds.rung_seconds


def _saved_by_graph(candidate: Candidate) -> float:
    """Return the host seconds of a candidate's launches, less the time in which a graph copies."""
    copies = candidate.copied_bytes / COPIED_BYTES_PER_SECOND
    return candidate.launches * LAUNCH_SECONDS - copies


def _has_graph(rung: str) -> bool:
    """Return True if a rung replays CUDA graphs."""
    mode, *options = rung.split("+")
    return "cuda_graph" in options or mode in ("reduce-overhead", "max-autotune")


def _launches_may_dominate(subject: Subject, best: Outcome) -> bool:
    """Return True if launches from Python may take a large share of the best candidate's time."""
    options = best.candidate.options
    if subject.device != "cuda" or subject.backward is not None or options.graph:
        return False
    if best.seconds is None or best.seconds > LONG_CALL_SECONDS:
        return False
    return _saved_by_graph(best.candidate) > LAUNCH_SHARE * best.seconds


def _is_idle(subject: Subject, outcomes: Sequence[Outcome]) -> bool:
    """Return True if none of the last candidates was surely faster than an earlier accepted one."""
    best = best_of(outcomes)
    tries = IDLE_TRIES[subject.device]
    if best is not None and best.is_clear_gain and best.judged_s > 0:
        tries = min(tries, int(TRYING_S / best.judged_s))
    first = max(0, len(outcomes) - tries)
    best, last = best_of(outcomes[:first]), outcomes[first:]
    return best is not None and all(o.lower_limit <= best.speedup for o in last)


def _choices(
    subject: Subject, outcomes: Sequence[Outcome], bounds: Bounds, memory: Memory
) -> Iterator[tuple[Options, str]]:
    if not outcomes:
        if memory.first is not None:
            yield memory.first, "start with the choice that won for an equal module before"
        first = _first_options(subject, bounds)
        if _graph_comes_first(subject, first, bounds):
            yield replace(first, graph=True), "fuse, and replay the many launches as a CUDA graph"
        yield first, "fold all operators that can be folded, and fuse the others"
        if subject.device == "cuda":
            yield (
                replace(first, convolutions="channels_last", tf32_few_channels=False),
                "run convolutions in channels-last layout",
            )
            yield replace(first, convolutions="every"), "compute convolutions by own kernels"
            yield replace(first, own_attention=True), "compute attention by a kernel of our own"
        return
    best = best_of(outcomes)
    if best is None:
        failed = outcomes[-1]
        yield from repairs(failed.candidate, failed.reason, failed.broken_files)
        return
    options = best.candidate.options
    if options.own_recurrences and best.candidate.has_recurrences and best.speedup < 1:
        yield (
            replace(options, own_recurrences=False),
            "leave recurrent layers to the library, because the candidate is slower",
        )
    if options.recurrences and best.candidate.library and best.speedup < 1:
        yield (
            replace(options, recurrences=False),
            "leave recurrences and loops to torch, because the candidate is slower",
        )
    if _launches_may_dominate(subject, best):
        yield (
            replace(options, graph=True),
            f"replay the {best.candidate.launches} launches as a CUDA graph",
        )
    if not best.is_clear_gain:
        yield from _tf32(subject, best)
        yield from _layouts(subject, best)
    if not options.compile and _rest_may_gain(best, bounds):
        mode = _compile_mode(bounds.rung)
        graph = options.graph or (_has_graph(bounds.rung) and subject.backward is None)
        yield (
            replace(options, compile=mode, graph=graph),
            f"run all that is not in the kernels as torch.compile does (mode {mode})",
        )
    fused = best.candidate.library or best.candidate.library_attention
    if subject.device == "cuda" and fused and not options.own_attention:
        yield replace(options, own_attention=True), "compute attention by a kernel of our own"
    if best.candidate.has_products:
        for rank in (1, 2):
            yield replace(options, tiles=rank), "use other tiles for the products"
        yield replace(options, split=not options.split), "split operands of products in each tile"
    yield from _layouts(subject, best)
    yield (
        replace(options, merge=not options.merge),
        "compute linear layers of the same input as one product with stacked weights",
    )
    if bounds.schedules_may_win(best):
        yield from _schedules(subject, best)
    if not best.is_likely_gain and len(best.candidate.kernels) > 1:
        for name, origins in zip(best.candidate.kernels, best.candidate.origins, strict=True):
            yield (
                replace(options, keep=options.keep | origins),
                f"leave out {name}, because torch may run its operators as fast",
            )


def _tf32(subject: Subject, best: Outcome) -> Iterator[tuple[Options, str]]:
    """Yield (options, reason) with TF32 for convolutions of few channels, if TF32 is admitted."""
    options = best.candidate.options
    if subject.target.tf32_convolutions and not options.exact_convolutions:
        yield (
            replace(options, tf32_few_channels=True),
            "compute convolutions of few channels in TF32, as the library may do",
        )


def _layouts(subject: Subject, best: Outcome) -> Iterator[tuple[Options, str]]:
    """Yield (options, reason) with other ways to compute convolutions.

    If the candidate has many, only ways of torch.
    """
    options, count = best.candidate.options, best.candidate.convolutions
    if subject.device != "cuda" or count == 0:
        return
    if count > FEW_CONVOLUTIONS:
        if options.convolutions == "own" and not best.is_clear_gain:
            yield replace(options, convolutions="library"), "leave convolutions to the library"
        return
    if options.convolutions == "own":
        yield (
            replace(options, convolutions="channels_last"),
            "run convolutions in the library in channels-last layout",
        )
    if options.convolutions == "own" and not best.is_clear_gain:
        yield replace(options, convolutions="library"), "leave convolutions to the library"
    if best.candidate.library_convolutions and not best.is_clear_gain:
        yield replace(options, convolutions="every"), "compute all convolutions by own kernels"


def _compile_mode(rung: str) -> str:
    """Return the mode of torch.compile that is most similar to a rung, without CUDA graphs."""
    mode = rung.partition("+")[0]
    return AUTOTUNE if mode in ("max-autotune", AUTOTUNE) else "default"


def _rest_may_gain(best: Outcome, bounds: Bounds) -> bool:
    """Return True if the candidate does not clearly beat some compiled rung.

    The operations around the candidate's kernels may then run slower than in that rung.
    """
    if best.own_share is not None and best.own_share > 1 - OWN_SHARE:
        return False
    rungs = [name for name in best.ratios if name.split("+")[0] in ("compile", *COMPILE_MODES)]
    rungs += [name for name in best.ratios if "cuda_graph" in name]
    return any(not best.ratios[name].low >= CLEAR_GAIN for name in rungs)


def _schedules(subject: Subject, best: Outcome) -> Iterator[tuple[Options, str]]:
    options = best.candidate.options
    if subject.device == "cuda":
        for threads in (128, 256, 512):
            yield replace(options, threads=threads), f"use {threads} threads for each row"
        yield replace(options, vector=False), "use scalar accesses instead of 16-byte accesses"
    elif not best.is_likely_gain:
        for tile in (16, 256):
            yield replace(options, tile=tile), f"use tiles of {tile} adjacent rows"
