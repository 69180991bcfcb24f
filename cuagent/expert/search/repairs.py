"""Choose the candidates to try after a rejection, from the reason of the rejection.

A rejection seldom says which part of a candidate is at fault, so parts are left out one by one:
first those that fail most often, last the kernels alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from cuagent.expert.candidate import Candidate
from cuagent.expert.options import Options


def repairs(
    candidate: Candidate, reason: str, broken_files: Collection[str]
) -> Iterator[tuple[Options, str]]:
    """Yield (options, reason) of the candidates to try after `candidate` was rejected.

    `reason`: that of the verdict. `broken_files`: paths of its sources that did not compile.
    The candidates omit, in this order: chains of kernels; torch.compile and the CUDA graph, if no
    value was wrong; the kernels that did not compile; fused calls; values computed once; TF32 and
    folded weights, if values were wrong; torch.compile and the CUDA graph; each kernel alone.
    """
    options = candidate.options
    is_imprecise = _is_wrong_result(reason) or "while timed" in reason
    if "while timed" in reason:
        # The verdict before found no fault, so the precision is more likely at fault than a kernel.
        yield from more_precise(candidate)
    if candidate.has_chains:
        yield replace(options, chains=False), "launch each kernel by itself, to find a faulty one"
    if not broken_files and not is_imprecise:
        yield from _plainer(options)
    parts = list(zip(candidate.kernels, candidate.origins, strict=True))
    broken = {name: origins for name, origins in parts if _is_in(name, candidate, broken_files)}
    if broken:
        verb = "it does" if len(broken) == 1 else "they do"
        yield (
            replace(options, keep=options.keep.union(*broken.values())),
            f"leave the operators of {', '.join(broken)} to torch, because {verb} not compile",
        )
    if candidate.has_recurrences:
        yield replace(options, own_recurrences=False), "leave recurrent layers to the library"
    if candidate.library:
        yield replace(options, attention=False), "leave attention as it is written"
        yield replace(options, recurrences=False), "leave recurrences to torch"
    if candidate.constants:
        yield replace(options, constants=False), "compute masks and tables in each call"
    if is_imprecise:
        yield from more_precise(candidate)
    if _is_wrong_result(reason) and options.fold and candidate.folded:
        yield replace(options, fold=False), "keep the weights unfolded, for more precision"
    yield from _plainer(options)
    for name, origins in parts:
        yield (
            replace(options, keep=options.keep | origins),
            f"leave out {name}, which may be wrong",
        )


def more_precise(candidate: Candidate) -> Iterator[tuple[Options, str]]:
    """Yield (options, reason) with more precise convolutions than those of `candidate`: the library
    computes some in float32 although TF32 is admitted."""
    options = candidate.options
    if candidate.convolutions > 1 and options.tf32_few_channels:
        yield (
            replace(options, tf32_few_channels=False),
            "compute convolutions of few channels as in float32",
        )
    if candidate.convolutions:
        yield replace(options, exact_convolutions=True), "compute convolutions as in float32"


def shares_fault(other: Candidate, refused: Candidate, reason: str) -> bool:
    """Return True if `other` computes its convolutions as `refused` does, which was refused for a
    `reason` that they explain."""
    if "while timed" not in reason or next(more_precise(refused), None) is None:
        return False
    first, second = other.options, refused.options
    return (first.tf32_few_channels, first.exact_convolutions) == (
        second.tf32_few_channels,
        second.exact_convolutions,
    )


def _is_in(name: str, candidate: Candidate, paths: Collection[str]) -> bool:
    """Return True if one of the files at `paths` has the kernel `name`."""
    launcher = f'extern "C" void {name}('
    return any(launcher in candidate.files.get(path, "") for path in paths)


def _plainer(options: Options) -> Iterator[tuple[Options, str]]:
    """Yield (options, reason) without torch.compile, and without a CUDA graph.

    An exception may come from either, and says nothing about the kernels.
    """
    if options.compile:
        yield replace(options, compile=""), "run all that is not in a kernel without torch.compile"
    if options.graph:
        yield (
            replace(options, compile="", graph=False),
            "launch the kernels without a CUDA graph",
        )


def _is_wrong_result(reason: str) -> bool:
    return "precise" in reason or "values" in reason
