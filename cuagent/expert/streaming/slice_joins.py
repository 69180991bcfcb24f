"""Find reductions of a row that follow from those of its slices, though they depend on another one.

The sum of (v - mean)^2 is that of the squares about the mean of each slice, plus the square of the
distance of the means for each element (Chan, Golub and LeVeque, 1983). The sum of exp(v - max) is
that of each slice, scaled by exp(max of the slice - max).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.graph.graph import Kind, Node, Operand
from cuagent.expert.streaming.stages import Plan

CENTRED, POWERS = "centred", "powers"
"""Kinds of a joined reduction: a sum of squares about the mean, a sum of powers below the max."""


@dataclass(frozen=True)
class SliceJoin:
    """Rule by which the results of a reduction over the slices of a row are joined."""

    kind: str
    first: str
    """Name of the sum or the maximum on which the reduction depends."""
    value: str
    """Name of the row value that the elements are compared with: the mean or the maximum."""


def slice_joins(plan: Plan) -> dict[str, SliceJoin] | None:
    """Return the join of each reduction of a plan's second stage; None if one has none, or if the
    second stage needs other row values, or stores elements.
    """
    stage = plan.stages[1]
    found = {node.name: _join_of(node, plan) for node in stage.reduces}
    values = {join.value for join in found.values() if join}
    if stage.stores or not all(found.values()):
        return None
    for node in stage.compute:
        # Values of the whole row are not known in a pass over a slice.
        row = {a for a in map(plan.source, node.args) if _depends(a, plan)}
        if any(a not in values for a in row if not plan.is_element(a)):
            return None
    return {name: join for name, join in found.items() if join}


def _join_of(node: Node, plan: Plan) -> SliceJoin | None:
    if node.op != "sum":
        return None
    inner = plan.nodes.get(str(plan.source(node.args[0])))
    if inner is None or inner.kind is not Kind.POINTWISE:
        return None
    operands = {plan.source(a) for a in inner.args}
    if len(operands) != 1:
        return None
    gap = plan.nodes.get(str(operands.pop()))
    if gap is None or gap.kind is not Kind.POINTWISE or gap.op != "sub":
        return None
    value, centre = gap.args[0], plan.source(gap.args[1])
    if inner.op == "mul" and (first := _sum_of_mean(centre, plan)):
        kind = CENTRED
    elif inner.op in ("exp", "exp_nonpositive") and _is(plan.nodes.get(str(centre)), "max"):
        kind, first = POWERS, plan.nodes[str(centre)]
    else:
        return None
    if not _same(gap, value, first, first.args[0], plan) or _depends(value, plan):
        return None
    return SliceJoin(kind, first.name, str(centre))


def _is(node: Node | None, op: str) -> bool:
    return node is not None and node.kind is Kind.REDUCE and node.op in (op, f"a{op}")


def _sum_of_mean(centre: Operand, plan: Plan) -> Node | None:
    """Return the sum whose mean is the row value `centre`; None for another value."""
    mean = plan.nodes.get(str(centre))
    if mean is None or mean.kind is not Kind.POINTWISE or mean.op != "mul":
        return None
    first, factor = plan.nodes.get(str(plan.source(mean.args[0]))), mean.args[1]
    if first is None or not _is(first, "sum") or not isinstance(factor, float):
        return None
    return first if math.isclose(factor * plan.nest.group.columns, 1.0, rel_tol=1e-5) else None


def _same(a: Node, of_a: Operand, b: Node, of_b: Operand, plan: Plan) -> bool:
    """Return True if an operand of one node and an operand of another are the same element."""
    reads = plan.nest.reads
    one, two = reads.get((a.name, str(of_a))), reads.get((b.name, str(of_b)))
    return one == two if one or two else plan.source(of_a) == plan.source(of_b)


def _depends(name: Operand, plan: Plan) -> bool:
    """Return True if a value depends on a reduction of the group."""
    return plan.nest.levels.get(str(plan.source(name)), 0) > 0
