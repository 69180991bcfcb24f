"""Average the input of a pointwise convolution instead of its result.

A mean over windows and a convolution with windows of one element act on different dimensions, so
their order does not matter in exact arithmetic. The convolution then has one place for each window:
behind 2x2 windows a quarter of the products, and of the bytes that it reads and writes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.convolutions.qualify import is_pointwise
from cuagent.expert.convolutions.sums import is_convolution
from cuagent.expert.edits import Editor
from cuagent.expert.graph.graph import Graph, Kind, Node

LEAST_SHRINKAGE = 2
"""Least ratio of the places before and after the pool; with less, reading twice would cost more."""


def average_before_convolutions(graph: Graph) -> Graph:
    """Return the graph in which pools of means come before the pointwise convolutions that only
    they read."""
    editor, users = Editor(graph), graph.users()
    for pool in graph.nodes:
        conv = graph.node(pool.inputs[0]) if pool.kind is Kind.POOL else pool
        alone = len(users[conv.name]) == 1 and conv.name not in graph.outputs
        if conv is not pool and alone and _commute(graph, conv, pool):
            x = graph.node(str(conv.args[0]))
            shape = (*pool.shape[:1], x.shape[1], *pool.shape[2:])
            mean = replace(pool, name=f"{pool.name}_before", args=(x.name,), shape=shape)
            after = replace(
                conv, name=pool.name, args=(mean.name, *conv.args[1:]), shape=pool.shape
            )
            editor.replaced |= {conv.name: [], pool.name: [mean, after]}
    return editor.result() if editor.replaced else graph


def _commute(graph: Graph, conv: Node, pool: Node) -> bool:
    """Return True if a pool of means may come before a convolution.

    Padding that counts as zeros would change the sum of the bias. Half types are excluded: the
    means would be rounded in place of their sums.
    """
    if not is_convolution(conv) or not is_pointwise(conv, graph.node(str(conv.args[1]))):
        return False
    inside = all(not s.padding or not s.include_padding for s in pool.spec)
    whole = pool.dims == tuple(range(2, len(conv.shape)))
    shrinks = math.prod(conv.shape[2:]) >= LEAST_SHRINKAGE * math.prod(pool.shape[2:])
    return pool.op == "mean" and conv.dtype == "float32" and inside and whole and shrinks
