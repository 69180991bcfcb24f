"""List the options of a candidate that may be tried next, in the order of expected gain.

The first candidate has all rewrites and fusions that should help. Each later one changes a single
option of the best accepted candidate; after a rejection, single kernels are removed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cuagent.expert.candidate import Candidate, make_candidate
from cuagent.expert.capture.subject import Subject
from cuagent.expert.options import Options
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import CLEAR_GAIN, OWN_SHARE, Bounds, Outcome, best_of
from cuagent.expert.search.repairs import repairs

LAUNCH_SECONDS = 12e-6
"""Host time in seconds of one kernel launch from Python, or of one call of torch. A MobileNet of 28
launches took 0.34 ms (H100 host)."""
SAVED_SECONDS, SAVED_SHARE = 3e-6, 0.03
"""Time of a small kernel on a GPU, and least share of the best candidate's time that such kernels
must take for one that replaces several to be tried."""
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
MOST_COMPILED = 60
"""Largest number of kernels and library calls in a candidate for a CPU that torch.compile is tried
on. EfficientNet's 172 took a minute to compile in the sandbox."""
SMALL_PRODUCTS = "compute small products, with what follows them, by own kernels"
"""Reason for a candidate with `Options.small_products`."""
AUTOTUNE = "max-autotune-no-cudagraphs"
COMPILE_MODES = ("reduce-overhead", "max-autotune", AUTOTUNE)
"""Names of rungs that are modes of torch.compile."""


def candidate_of(subject: Subject, options: Options) -> Candidate | None:
    """Return `make_candidate(subject, options)`, which is computed once: the search compares
    proposals for several possible outcomes, and a large network takes seconds.
    """
    if options not in subject.made:
        subject.made[options] = make_candidate(subject, options)
    found: Candidate | None = subject.made[options]
    return found


def choices(
    subject: Subject, outcomes: Sequence[Outcome], bounds: Bounds, memory: Memory
) -> Iterator[tuple[Options, str]]:
    """Yield (options, difference to the best candidate) of what may be tried next.

    `memory` has the options to try first.
    """
    if not outcomes:
        yield from _first_choices(subject, bounds, memory)
        return
    best = best_of(outcomes)
    if best is None:
        failed = outcomes[-1]
        yield from repairs(failed.candidate, failed.reason, failed.broken_files)
        return
    yield from _changes(subject, best, bounds)


def _first_choices(
    subject: Subject, bounds: Bounds, memory: Memory
) -> Iterator[tuple[Options, str]]:
    """Yield the options of a first candidate; a later one is used if the module admits no earlier
    one.
    """
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
        yield replace(first, small_products=True), SMALL_PRODUCTS


def _changes(subject: Subject, best: Outcome, bounds: Bounds) -> Iterator[tuple[Options, str]]:
    """Yield the options that differ from those of the best accepted candidate in one choice."""
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
    if not options.small_products and _small_products_matter(best):
        yield replace(options, small_products=True), SMALL_PRODUCTS
    compiles = not (options.compile or bounds.kernels_only or best.candidate.library_layers)
    compiles &= subject.device == "cuda" or best.candidate.launches <= MOST_COMPILED
    if compiles and _rest_may_gain(best, bounds):
        mode = _compile_mode(bounds.rung)
        graph = options.graph or (_has_graph(bounds.rung) and subject.backward is None)
        yield (
            replace(options, compile=mode, graph=graph),
            f"run all that is not in the kernels as torch.compile does (mode {mode})",
        )
    fused = best.candidate.library or best.candidate.library_attention
    if subject.device == "cuda" and fused and not options.own_attention:
        yield replace(options, own_attention=True), "compute attention by a kernel of our own"
    if products := best.candidate.half_products:
        yield (
            replace(options, keep=options.keep | products),
            "compute half-precision products by the library, and what follows by other kernels",
        )
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


def _small_products_matter(best: Outcome) -> bool:
    """Return True if kernels for small products may save a share of the best candidate's time."""
    saved = best.candidate.saved_launches * SAVED_SECONDS
    share = 1.0 if best.seconds is None else saved / best.seconds
    return best.candidate.small_products or (saved > 0 and share > SAVED_SHARE)


def _first_options(subject: Subject, bounds: Bounds) -> Options:
    """Return the options of the first candidate: the precision of convolutions is the reference's.

    cuDNN computes some convolutions in float32 although TF32 is admitted. The candidate is judged
    by the reference's error, so it must then compute them in float32 precision too. The error of a
    network of many convolutions does not tell the precision of each.
    """
    options = Options(tf32_few_channels=bounds.in_tf32)
    if not bounds.is_exact or not subject.target.tf32_convolutions:
        return options
    made = candidate_of(subject, options)
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
    made = candidate_of(subject, options)
    share = LAUNCH_SHARE if _has_graph(bounds.rung) else 1.0
    return made is not None and _saved_by_graph(made) > share * bounds.rung_seconds


def _saved_by_graph(candidate: Candidate) -> float:
    """Return the host seconds of a candidate's launches, less the time in which a graph copies."""
    return candidate.launches * LAUNCH_SECONDS - _copying(candidate)


def _copying(candidate: Candidate) -> float:
    """Return the seconds in which a CUDA graph copies the arguments and results."""
    return candidate.copied_bytes / COPIED_BYTES_PER_SECOND


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
    saved = _saved_by_graph(best.candidate)
    if best.busy is not None:
        # The profile knows also the launches within calls of torch.
        saved = max(saved, best.seconds - best.busy - _copying(best.candidate))
    return saved > LAUNCH_SHARE * best.seconds


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

    If the candidate has many, these are own kernels for all in half precision, and ways of torch:
    RegNet's grouped convolutions took 2.05 ms in channels-last layout by torch.compile, and own
    kernels 2.11 to 2.30.
    On an H200 own kernels for all took 0.55 to 0.95 of the first candidate's time in five of seven
    networks in half precision, and more than it in all in float32.
    """
    options, count = best.candidate.options, best.candidate.convolutions
    if subject.device != "cuda" or count == 0:
        return
    if count > FEW_CONVOLUTIONS:
        if options.convolutions == "own" and not best.is_clear_gain:
            if best.candidate.half_convolutions:
                yield (
                    replace(options, convolutions="every"),
                    "compute all convolutions by own kernels",
                )
            if best.candidate.library_convolutions < count:
                yield (
                    replace(options, convolutions="network"),
                    "run all convolutions in the library in channels-last layout",
                )
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
