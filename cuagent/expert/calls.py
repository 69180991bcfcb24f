"""Generate the kernel of one step for the target, with the schedule that the options select."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cuagent.expert.attention import triton as fused_attention
from cuagent.expert.attention.kernel import AttentionStep, blocks
from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions import triton as convolution
from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.convolutions.flags import has_flags
from cuagent.expert.convolutions.qualify import captured_channels, runs_in_tf32
from cuagent.expert.convolutions.tiles import tiles as convolution_tiles
from cuagent.expert.einsums import triton as einsum
from cuagent.expert.einsums.match import EinsumStep
from cuagent.expert.families import generate
from cuagent.expert.graph.graph import ITEM_BYTES, Graph
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.method import TritonCall, TritonStep
from cuagent.expert.mlps import triton as layer_chain
from cuagent.expert.mlps.chain import LayerChain
from cuagent.expert.naming import title
from cuagent.expert.options import Options
from cuagent.expert.products import triton as matrix_product
from cuagent.expert.products.product import Product
from cuagent.expert.products.qualify import tiles_of
from cuagent.expert.products.tiles import FLOAT32, fitted, ranked, with_registers
from cuagent.expert.streaming.group import Group

MOST_SUMS = 64
"""Largest number of sums of a thread of a convolution where tensor cores read registers. Compiled
for sm_89 (Triton 3.9), kernels with 128 sums spilled 0.6 kB (TF32) and 2.7 kB (float16)."""
MOST_SUMS_OF_PARTS = 32
"""The same for float32 products whose operands are split in registers: with 64 sums of 128 x 128
they spilled 0.4 to 0.6 kB for sm_80."""


def group_call(
    name: str, group: Group, graph: Graph, target: Target, options: Options
) -> KernelCall:
    """Return the C++ or CUDA kernel of a group. Raises NestError if its family has none for it."""
    request = Request(
        name,
        group,
        graph,
        title(group),
        options.tile,
        options.threads,
        options.vector,
        clusters=target.has_clusters,
    )
    return generate(target.device, request)


def rebased_call(group: Group, graph: Graph, options: Options) -> KernelCall:
    """Return a group's CPU kernel that expects pointers to the first elements that it reads.

    `KernelCall.offsets` has the index of the first element of each tensor.
    """
    request = Request("kernel", group, graph, title(group), options.tile, rebased=True)
    return generate("cpu", request)


def triton_call(
    name: str,
    step: TritonStep,
    graph: Graph,
    target: Target,
    options: Options,
) -> TritonCall:
    """Return the Triton kernel `name` of a step."""
    if isinstance(step, AttentionStep):
        return _attention_call(name, step, target, options)
    if isinstance(step, EinsumStep):
        text = einsum.render(name, step, graph)
        return TritonCall(name, text, step, partial(einsum.launch, step=step))
    if isinstance(step, Product):
        return _product_call(name, step, graph, target, options)
    if isinstance(step, LayerChain):
        return _chain_call(name, step, graph, target, options)
    return _convolution_call(name, step, graph, target, options)


def _attention_call(name: str, step: AttentionStep, target: Target, options: Options) -> TritonCall:
    block = blocks(step, target, options.tiles)
    text = fused_attention.render(name, step, block.splits)
    return TritonCall(name, text, step, partial(fused_attention.launch, step=step, tile=block))


def _chain_call(
    name: str, step: LayerChain, graph: Graph, target: Target, options: Options
) -> TritonCall:
    text = layer_chain.render(name, step, lambda output: graph.node(output).dtype)
    tiles = layer_chain.tiles(step, target.processors)
    tile = tiles[min(options.tiles, len(tiles) - 1)]
    return TritonCall(name, text, step, partial(layer_chain.launch, chain=step, tile=tile))


def _product_call(
    name: str, step: Product, graph: Graph, target: Target, options: Options
) -> TritonCall:
    text = matrix_product.render(name, step, lambda output: graph.node(output).dtype)
    sizes = (step.rows, step.columns, step.node.dtype, target.processors, step.batch)
    tiles = ranked(*sizes, tiles_of(step, graph))
    # Both float16 parts of a split operand have the bytes of its float32 elements.
    item, rights = ITEM_BYTES[step.node.dtype], 1 if step.second is None else 2
    if {*tiles} == {*FLOAT32} and not target.multiplies_from_shared:
        narrow = (with_registers(tile, 1, MOST_SUMS_OF_PARTS) for tile in tiles)
        tiles = tuple(tile for tile in narrow if tile.warps <= FLOAT32[0].warps)
    tile = fitted(tiles[min(options.tiles, len(tiles) - 1)], target.capability, item, rights)
    return TritonCall(name, text, step, partial(matrix_product.launch, product=step, tile=tile))


def _convolution_call(
    name: str, step: Convolution, graph: Graph, target: Target, options: Options
) -> TritonCall:
    channels = step.channels_out if step.is_copy else step.channels_in
    captured = captured_channels(step.node, channels)
    precision = "tf32" if runs_in_tf32(target, captured) else "tf32x3"
    tiles = convolution_tiles(step, target.processors, precision)
    tile = tiles[min(options.tiles, len(tiles) - 1)]
    item = ITEM_BYTES["float16" if step.scale else step.node.dtype]
    tile = fitted(tile, target.capability, item)
    if not target.multiplies_from_shared:
        tile = with_registers(tile, 2 if step.pair is not None or step.reduces else 1, MOST_SUMS)
    conv = replace(step, flagged=has_flags(step, tile))
    text = convolution.render(
        name, conv, lambda output: graph.node(output).dtype, precision, graph.parts, tile
    )
    return TritonCall(name, text, step, partial(convolution.launches, conv=conv, tile=tile))
