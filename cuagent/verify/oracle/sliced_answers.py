"""Measure spread and sensitivity of a large task's answer slice by slice.

If the slices' outputs are joined, `spread` and `sensitivity` are applied to each slice as to a
small task. If they are added, each perturbed run goes over all slices, and the sum is rounded like
the result of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.perturb import clamped_to_range, perturb, perturbed
from cuagent.verify.oracle.sensitivity import PerturbedReference
from cuagent.verify.oracle.slices import Slicing
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.tensors import UNIT, in_blocks, is_inexact, wide_dtype

if TYPE_CHECKING:
    from torch import Generator, Tensor, device

    from cuagent.verify.oracle.sensitivity import Answers


def joined_parts(
    slicing: Slicing, reference: PerturbedReference, target: Sequence[Tensor]
) -> Iterator[tuple[PerturbedReference, list[Tensor]]]:
    """Yield for each slice the reference restricted to it, and the views of `target` for its
    outputs.
    """
    assert reference.declared_on is not None
    for begin, end in slicing.ranges():
        inputs = slicing.of_inputs(reference.inputs, begin, end)
        exact = (
            None if reference.answer is None else slicing.of_outputs(reference.answer, begin, end)
        )
        declared = partial(reference.declared_on, inputs)
        part = replace(reference, inputs=inputs, answer=exact, declared=declared)
        yield part, slicing.of_outputs(target, begin, end)


def _own(views: Sequence[Tensor], device: device) -> list[Tensor]:
    """Return fp64 tensors on `device` with the shapes of `views`, filled with zeros.

    The views cannot be computed in directly: a slice of an arena need not be contiguous, and the
    arena may be in host memory.
    """
    return [view.new_zeros(view.shape, dtype=wide_dtype(view), device=device) for view in views]


def _copy(tensors: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    """Copy `tensors` to `views` of another dtype, which may be in host memory.

    The dtype is converted on the tensors' device, so that fewer bytes are transferred.
    """
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor.to(view.dtype))


def measure_change(
    slicing: Slicing,
    reference: PerturbedReference,
    reach: float,
    step: float,
    count: int,
    moved: Sequence[Tensor],
) -> None:
    """Write the sensitivity of the whole answer to `moved`, as `sensitivity.measure_change`
    does.
    """
    if slicing.joins:
        for part, views in joined_parts(slicing, reference, moved):
            own = _own(views, part.inputs[0].device)
            sensitivity.measure_change(part, reach, step, count, own)
            _copy(own, views)
        return
    sensitivity.write_largest_changes(
        reference, _perturbed_sums(slicing, reference, reach, step, count), moved
    )


def measure_tie_change(
    slicing: Slicing, reference: PerturbedReference, step: float, count: int, tied: Sequence[Tensor]
) -> None:
    """Write the change under other tie-breaks to `tied`, as `sensitivity.measure_tie_change`
    does.
    """
    if slicing.joins:
        for part, views in joined_parts(slicing, reference, tied):
            own = _own(views, part.inputs[0].device)
            sensitivity.measure_tie_change(part, step, count, own)
            _copy(own, views)
        return
    assert reference.declared_on is not None
    kinds = ((reference.declared_on, 0.0), (reference.run, step))
    runs = (
        _sum_or_none(slicing, reference, run, ordered(order, slack))
        for order in ORDERS[:count]
        for run, slack in kinds
    )
    sensitivity.write_largest_changes(reference, runs, tied)


def carried(slicing: Slicing, reference: PerturbedReference, runs: int) -> list[float]:
    """Return for each whole output the rms change under roundoff in every operator, in units of
    u.
    """
    assert reference.answer is not None
    squares = [0.0] * len(reference.answer)
    if slicing.joins:
        for part, _ in joined_parts(slicing, reference, reference.answer):
            assert part.answer is not None
            sizes = [
                y.numel() / whole.numel()
                for y, whole in zip(part.answer, reference.answer, strict=True)
            ]
            found = sensitivity.carried(part, runs)
            squares = [s + r * c**2 for s, r, c in zip(squares, sizes, found, strict=True)]
        return [math.sqrt(square) for square in squares]
    for _ in range(runs):
        rounding = sensitivity.rounded(UNIT, reference.generator)
        total = _sum_or_none(slicing, reference, reference.run, rounding, UNIT)
        for index, (x, y) in enumerate(
            zip(total or reference.answer, reference.answer, strict=True)
        ):
            for both in in_blocks(x, y):
                change = (both[0] - both[1]).nan_to_num(0.0, 0.0, 0.0)
                squares[index] += float(change.double().square().sum()) / y.numel()
    return [math.sqrt(square / runs) / UNIT for square in squares]


def measure_spread(
    slicing: Slicing,
    run: Callable[[list[Tensor]], Answers | None],
    inputs: Sequence[Tensor],
    exact: Sequence[Tensor],
    spread: Sequence[Tensor],
    count: int,
    generator: Generator,
    load: Callable[[int], None],
    *,
    wide: bool,
) -> None:
    """Write to `spread` the rms change of each element of `exact` over `count` perturbations.

    `run` returns None if it fails; that counts as no change. `load(n)` loads the weights of
    perturbation number n. With `wide` the perturbed inputs are fp64.
    """
    if slicing.joins:
        for begin, end in slicing.ranges():
            part, exact_part = (
                slicing.of_inputs(inputs, begin, end),
                slicing.of_outputs(exact, begin, end),
            )
            squares = [y.new_zeros(y.shape) for y in exact_part]
            for number in range(count):
                load(number)
                _add_squares(squares, _perturbed_run(run, part, generator, wide=wide), exact_part)
            _write_rms(squares, count, slicing.of_outputs(spread, begin, end))
        return
    squares = [y.new_zeros(y.shape) for y in exact]
    for number in range(count):
        load(number)
        total = [y.new_zeros(y.shape) for y in exact]
        for begin, end in slicing.ranges():
            part = slicing.of_inputs(inputs, begin, end)
            results = _perturbed_run(run, part, generator, wide=wide)
            for sum_, result in zip(total, results or (), strict=bool(results)):
                sum_.add_(result, alpha=slicing.share(begin, end))
            if results is None:
                total = list(exact)
                break
        _add_squares(squares, total, exact)
    _write_rms(squares, count, spread)


def _perturbed_run(
    run: Callable[[list[Tensor]], Answers | None],
    inputs: Sequence[Tensor],
    generator: Generator,
    *,
    wide: bool,
) -> Answers | None:
    nearby = [perturbed(tensor, generator, wide=wide) for tensor in inputs]
    results = run(nearby)
    return results if results is not None else run(clamped_to_range(nearby, inputs))


def _add_squares(
    squares: Sequence[Tensor], results: Sequence[Tensor] | None, exact: Sequence[Tensor]
) -> None:
    for sum_, result, y in zip(squares, results or exact, exact, strict=True):
        for total, *both in in_blocks(sum_, result, y) if is_inexact(y) else ():
            total += both[0].sub(both[1]).square_().nan_to_num_(0.0, 0.0, 0.0)


def _write_rms(squares: Sequence[Tensor], count: int, spread: Sequence[Tensor]) -> None:
    for sum_, view in zip(squares, spread, strict=True):
        for (total,) in in_blocks(sum_):
            total.div_(count).sqrt_()
        view.copy_(sum_)


def _perturbed_sums(
    slicing: Slicing, reference: PerturbedReference, reach: float, step: float, count: int
) -> Iterator[Answers | None]:
    """Yield the sum of all slices' outputs for `count` perturbations, each followed by its
    opposite.

    None for a run that fails.
    """
    generator, state = reference.generator, reference.state
    originals = [tensor.clone() for tensor in state.values()]
    try:
        for _ in range(count):
            start = generator.get_state()
            for sign in (1, -1):
                generator.set_state(start)
                for tensor, value in zip(state.values(), originals, strict=True):
                    tensor.copy_(perturbed(value, generator, sign * reach))

                def run(inputs: list[Tensor], scale: float = sign * reach) -> Answers:
                    wide = reference.to_fp64
                    return reference.run(
                        [perturbed(x, generator, scale, wide=wide) for x in inputs]
                    )

                rounding = sensitivity.rounded(sign * step, generator)
                yield _sum_or_none(slicing, reference, run, rounding, sign * step)
    finally:
        for tensor, value in zip(state.values(), originals, strict=True):
            tensor.copy_(value)


def _sum_or_none(
    slicing: Slicing,
    reference: PerturbedReference,
    run: Callable[[list[Tensor]], Answers],
    context: AbstractContextManager[Any],
    step: float = 0.0,
) -> Answers | None:
    """Return the sum of all slices' outputs, rounded randomly by `step`; None if a run fails.

    `run` is called on each slice inside `context`.
    """
    assert reference.answer is not None
    total = [y.new_zeros(y.shape) for y in reference.answer]

    def whole() -> Answers:
        with context:
            slicing.run(run, reference.inputs, total)
        return total

    results = sensitivity.run_or_none(whole, nullcontext())
    for result in (results or ()) if step else ():
        perturb(result, reference.generator, step, steady=True)
    return results
