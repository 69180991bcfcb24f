"""Reduce the sizes of a task in KernelBench's format, so that an emulated GPU computes it in
seconds.

`reduced` replaces the integers that a task assigns to names at its top level, by the name's
meaning: batch, spatial sizes, features and channels, groups. Kernel sizes, strides, paddings and
all other numbers stay. Equal integers of one meaning stay equal, different ones stay different.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

BATCH = re.compile(r"batch_?size|b")
SPATIAL = re.compile(r"(depth|height|width|D|H|W)(_in)?|\w*length|dim\d")
FEATURES = re.compile(
    r"(in_|out_)?(features|channels)|(input|hidden|output)_size|num_classes|embedding_dimension"
    r"|num_heads|input_shape|dim|[MNKLijklmn]"
)
GROUPS = re.compile(r"(num_)?groups")
HEAVY = re.compile(r"nn\.(Conv|Linear)|matmul|\bmm\(|bmm\(|einsum|attention|gemm| @ ")
"""Operations that the interpreter of Triton computes, which is slower than the emulation of CUDA
C++."""
SPATIAL_SIZES = {1: 128, 2: 18, 3: 8}
"""Size of a spatial dimension of the module, by the number of spatial dimensions."""
LIGHT_ELEMENTS = 1 << 16
"""Number of elements of a sample to which a module without products and convolutions is reduced."""
SMALL, STEP = 128, 64
"""Size of the smallest feature dimension, and difference to the next one."""
LONG = 2048
"""Size of a feature dimension of more than 2^17."""
SIZES = ("even", "odd")


def reduced(text: str, size: str, mild: bool = False) -> str:
    """Return the text of a task with smaller sizes. `size`: "even" keeps divisibility by powers of
    two where the task has it; "odd" gives sizes without it. `mild`: reduce only the batch and the
    outermost spatial dimension, because other sizes of the module depend on each other.
    """
    found = _assigned(text)
    heavy = bool(HEAVY.search(text))
    spatial = [n for n, _, _ in found if SPATIAL.fullmatch(n)]
    new = _replacements([(n, v) for n, v, _ in found], size, heavy, text)
    outermost = spatial[0] if spatial else ""
    for name, value, node in sorted(found, key=lambda item: -_start(text, item[2])):
        if mild and not BATCH.fullmatch(name) and name != outermost:
            continue
        start, end = _start(text, node), _end(text, node)
        number = new(name, value)
        text = f"{text[:start]}{f'({number},)' if _is_tuple(node) else number}{text[end:]}"
    return text


def in_dtype(text: str, entry: str, dtype: str) -> tuple[str, str]:
    """Return (text of a task whose module and inputs have another dtype, name of its class)."""
    name = f"{entry}In{dtype.title()}"
    added = f"""

class {name}({entry}):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.to(torch.{dtype})


_inputs_in_float32 = get_inputs


def get_inputs():
    return [
        x.to(torch.{dtype}) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in _inputs_in_float32()
    ]
"""
    return text + added, name


def _assigned(text: str) -> list[tuple[str, int, ast.expr]]:
    """Return (name, integer, its node) of each integer that the top level of a text assigns to a
    name that has a meaning."""
    found = []
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign):
            continue
        targets = statement.targets
        pairs = [(t, statement.value) for t in targets if isinstance(t, ast.Name)][-1:]
        if isinstance(targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(targets[0].elts, statement.value.elts, strict=True))  # type: ignore[arg-type]
        for target, node in pairs:
            value = _integer(node)
            meaning = (BATCH, SPATIAL, FEATURES, GROUPS)
            named = any(p.fullmatch(target.id) for p in meaning)
            if value is not None and value > 2 and named:
                found.append((target.id, value, node))
    return found


def _names(text: str) -> set[str]:
    """Return the names that the top level of a text assigns."""
    statements = [s for s in ast.parse(text).body if isinstance(s, ast.Assign)]
    targets = [node for s in statements for t in s.targets for node in ast.walk(t)]
    return {node.id for node in targets if isinstance(node, ast.Name)}


def _integer(node: ast.expr) -> int | None:
    """Return the value of an integer, of a product of integers, or of a tuple of one of them."""
    if _is_tuple(node):
        assert isinstance(node, ast.Tuple)
        return _integer(node.elts[0])
    try:
        value = ast.literal_eval(node)
    except ValueError:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            return None
        sides = _integer(node.left), _integer(node.right)
        return None if None in sides else sides[0] * sides[1]  # type: ignore[operator]
    return value if type(value) is int else None


def _is_tuple(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and len(node.elts) == 1


def _replacements(
    values: Sequence[tuple[str, int]], size: str, heavy: bool, text: str
) -> Callable[[str, int], int]:
    """Return the function (name, integer) -> smaller integer."""
    features = sorted({v for n, v in values if FEATURES.fullmatch(n) and v > 128})
    spatial = sorted({v for n, v in values if SPATIAL.fullmatch(n)})
    dimensions = len({n for n in _names(text) if SPATIAL.fullmatch(n)})
    groups = max((v for n, v in values if GROUPS.fullmatch(n)), default=1)
    largest = SMALL + STEP * max(0, len(features) - 1)
    few = groups
    if features and groups > 1:
        few = max(2, round(groups * largest / features[-1]))
        few = next(n for n in range(few, 0, -1) if largest % n == 0)
    convolves = "nn.Conv" in text
    odd = size == "odd"

    def replacement(name: str, value: int) -> int:
        if GROUPS.fullmatch(name):
            return few if value == groups else value
        if BATCH.fullmatch(name):
            if "nn.Linear" in text and not convolves:
                return min(value, 37 if odd else 64)
            return min(value, 3 if odd else 2)
        if SPATIAL.fullmatch(name):
            if not heavy:
                per = LIGHT_ELEMENTS // (64 if dimensions > 1 else 8)
                limit = max(16, int(per ** (1 / dimensions)) // 16 * 16)
            else:
                limit = SPATIAL_SIZES.get(dimensions, 8)
            number = min(value, limit + 2 * spatial.index(value))
            return number - 3 + (number % 2) + 2 * spatial.index(value) if odd else number
        if value <= 128 and (convolves or not heavy):
            return _odd_channels(value, few) if odd else value
        if not heavy:
            return min(value // 4, LIGHT_ELEMENTS) + 3 if odd else min(value, LIGHT_ELEMENTS)
        rank = features.index(value) if value in features else 0
        number = min(value, SMALL + STEP * rank) if value > 128 else value
        number = LONG if value > 1 << 17 else number
        if not odd:
            return number
        return few * (number // few * 3 // 4 | 1) if few > 1 else number * 3 // 4 | 3

    return replacement


def _odd_channels(value: int, groups: int) -> int:
    """Return a number of channels near `value` that only `groups` divides."""
    if value < 8:
        return value
    step = groups if groups > 1 and value % groups == 0 else 1
    count = value // step
    return step * (count - 1 if count % 2 == 0 and count > 2 else count + 2 * (count <= 2))


def _start(text: str, node: ast.expr) -> int:
    return _offset(text, node.lineno, node.col_offset)


def _end(text: str, node: ast.expr) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _offset(text, node.end_lineno, node.end_col_offset)


def _offset(text: str, line: int, column: int) -> int:
    """Return the index of a place in a text; `column` counts UTF-8 bytes of the line."""
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(
        lines[line - 1].encode()[:column].decode(errors="ignore")
    )
