"""Write an einsum with its epilogue as a Triton kernel.

A block loads the tile of each operand, multiplies and sums in registers, and stores one tile of the
result. Products of float32 operands are sums of three TF32 products (`tf32x3`) unless TF32 is
admitted; half types accumulate in float32.
"""

from __future__ import annotations

import math

from cuagent.expert.einsums.contraction import TileOperation
from cuagent.expert.einsums.match import EinsumStep, LetterPlace
from cuagent.expert.graph.graph import Graph
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier

WARPS = 4
"""Number of warps of a block, whose tile has up to 64 x 64 elements."""
WIDE = 1 << 31
"""Number of elements of a tensor from which on indices have 64 bits."""


def render(name: str, step: EinsumStep, graph: Graph) -> str:
    """Return the Triton text of the einsum's kernel."""
    parameters = [f"{identifier(output)}_out" for output in step.outputs]
    parameters += [pointer(tensor) for tensor in step.tensors]
    words, result = step.node.spec.words, step.node.spec.result
    sizes = ", ".join(f"{c}: {n}" for c, n in step.sizes.items())
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    {', '.join(parameters)},",
        "):",
        f'    """{",".join(words)}->{result} with {sizes}."""',
        *_indices(step, graph),
    ]
    for number, place in enumerate(step.operands):
        lines.append(f"    v{number} = {_load(place, step)}")
    letters = [_tile_letters(place, step) for place in step.operands]
    for operation in step.operations:
        lines.append(f"    v{len(letters)} = {_operation(operation, letters, step)}")
        letters.append(operation.letters)
    total = f"v{len(letters) - 1}"
    lines.append(f"    total = {_oriented(total, letters[-1], step.tile)}.to(tl.float32)")
    lines += epilogue(
        step.node.name, None, step.epilogue, step.reads or {}, lambda place: _address(place, step)
    )
    mask = _mask(step.tile, step, step.tile)
    for output in step.outputs:
        value = f"{variable(output)}.to({ELEMENTS[graph.node(output).dtype]})"
        address = _sum(f"{identifier(output)}_out", step.result, step, step.tile, wrapped=False)
        lines.append(f"    tl.store({address}, {value}{f', mask={mask}' if mask else ''})")
    return "\n".join(lines)


def launch(name: str, step: EinsumStep, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel."""
    given = f"    {', '.join(arguments)},"
    return [f"{name}[({step.programs},)](", given, f"    num_warps={WARPS},", ")"]


def _indices(step: EinsumStep, graph: Graph) -> list[str]:
    """Return the lines that compute the index along each letter from the number of the block."""
    tensors = [graph.node(name) for name in (*step.outputs, *step.tensors)]
    wide = any(node.size >= WIDE for node in tensors)
    converted = ".to(tl.int64)" if wide else ""
    lines = [f"    block = tl.program_id(0){converted}"]
    counts = [(c, math.ceil(step.sizes[c] / step.blocks[c])) for c in step.tile]
    counts += [(c, 1) for c in step.blocks if c not in step.tile]
    for letter, count in reversed(counts):
        side, start = step.blocks[letter], ""
        if count > 1:
            start = f" + block % {count} * {side}"
        lines.append(f"    {letter}_at = tl.arange(0, {side}){converted}{start}")
        lines += [f"    block = block // {count}"] if count > 1 else []
    for number, letter in enumerate(reversed(step.grid)):
        if number == len(step.grid) - 1:
            lines.append(f"    {letter}_at = block")
        else:
            lines.append(f"    {letter}_at = block % {step.sizes[letter]}")
            lines.append(f"    block = block // {step.sizes[letter]}")
    return lines


def _tile_letters(place: LetterPlace, step: EinsumStep) -> str:
    return "".join(c for c in place.letters if c not in step.grid)


def _index(letter: str, tile: str, step: EinsumStep, *, wrapped: bool) -> str:
    """Return the index along a letter, shaped for a tile; `wrapped`: indices past the end become
    valid ones."""
    text = f"{letter}_at"
    if letter in tile and len(tile) == 2:
        text += "[:, None]" if tile[0] == letter else "[None, :]"
    if wrapped and letter in step.blocks and step.sizes[letter] % step.blocks[letter]:
        text += f" % {step.sizes[letter]}"
    return text


def _sum(base: str, place: LetterPlace, step: EinsumStep, tile: str, *, wrapped: bool) -> str:
    """Return the text of the pointers to a tensor's tile; `tile` has the letters of its axes."""
    parts = [base, *([str(place.offset)] if place.offset else [])]
    for letter, stride in place.strides:
        parts.append(_index(letter, tile, step, wrapped=wrapped) + times(stride))
    return " + ".join(parts)


def _mask(letters: str, step: EinsumStep, tile: str) -> str:
    """Return the condition that the indices along `letters` are inside; "" if they always are."""
    return " & ".join(
        f"({_index(c, tile, step, wrapped=False)} < {step.sizes[c]})"
        for c in letters
        if step.sizes[c] % step.blocks[c]
    )


def _load(place: LetterPlace, step: EinsumStep) -> str:
    tile = _tile_letters(place, step)
    address = _sum(pointer(place.tensor), place, step, tile, wrapped=False)
    mask = _mask(tile, step, tile)
    return f"tl.load({address}{f', mask={mask}, other=0.0' if mask else ''})"


def _address(place: LetterPlace, step: EinsumStep) -> str:
    """Return the pointers to a tensor that the epilogue reads, which has the result's axes."""
    return _sum(pointer(place.tensor), place, step, step.tile, wrapped=True)


def _operation(operation: TileOperation, letters: list[str], step: EinsumStep) -> str:
    """Return the Triton expression of one operation; `letters` are those of all values so far."""
    left, right = operation.left, operation.right
    if operation.kind == "sum":
        axis = letters[left].index(operation.summed)
        return f"tl.sum(v{left}.to(tl.float32), {axis})"
    if operation.kind == "multiply":
        a, b = (_spread(f"v{k}.to(tl.float32)", letters[k], operation) for k in (left, right))
        # Infinity times the zeros outside of a tensor is NaN, which a later sum would contain.
        outside = [c for c in operation.letters if c not in letters[right] + step.tile]
        mask = _mask("".join(outside), step, operation.letters)
        return f"tl.where({mask}, {a} * {b}, 0.0)" if mask else f"{a} * {b}"
    first = letters[left].replace(operation.summed, "") + operation.summed
    second = operation.summed + letters[right].replace(operation.summed, "")
    element = ELEMENTS[step.node.dtype]
    a = _oriented(f"v{left}.to({element})", letters[left], first)
    b = _oriented(f"v{right}.to({element})", letters[right], second)
    precision = f', input_precision="{step.precision}"' if element == "tl.float32" else ""
    return f"tl.dot({a}, {b}{precision})"


def _spread(value: str, letters: str, operation: TileOperation) -> str:
    """Return a value with the axes of the operation's result, along some of which its size is 1."""
    if len(operation.letters) < 2 or not letters:
        return value
    if len(letters) == 1:
        return f"{value}{'[:, None]' if operation.letters[0] == letters else '[None, :]'}"
    return _oriented(value, letters, operation.letters)


def _oriented(value: str, letters: str, wanted: str) -> str:
    return value if letters == wanted else f"tl.trans({value})"
