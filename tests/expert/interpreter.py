"""Correct the arithmetic of Triton's interpreter: bfloat16, products in TF32, libdevice; and check
the addresses of loads and stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from emulation import InvalidAccess, extent  # type: ignore[import-not-found]


def exact_arithmetic() -> None:
    """Change Triton's interpreter (3.9) so that it computes as a GPU does.

    It multiplies the bits of bfloat16 as integers, truncates conversions to bfloat16, and keeps all
    bits of operands in TF32, whose last 13 tensor cores ignore.
    """
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def create_dot(_: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        truncates = str(precision).rpartition(".")[2] == "TF32"
        left, right = (_operand(x.data, truncates) for x in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right) + d.data, d.dtype.scalar)

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.is_fp32() and target.is_bf16():
            bits = np.ascontiguousarray(data).view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return np.where(np.isnan(data), 0x7FFF, nearest).astype(np.uint16)
        return convert(data, source, target, rounding)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter._convert_float = converted
    for name in ("expm1", "log1p", "tanh"):
        _add_to_libdevice(name)


def _add_to_libdevice(name: str) -> None:
    """Let a function of libdevice, which the interpreter does not have, compute with numpy."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def function(x: Any) -> Any:
        with np.errstate(over="ignore"):
            return tl.tensor(TensorHandle(getattr(np, name)(x.handle.data), x.dtype), x.type)

    setattr(libdevice, name, function)


def _operand(data: Any, truncates: bool) -> Any:
    """Return an operand of a product in float32; the interpreter keeps bfloat16 as 16-bit
    integers."""
    if data.dtype == np.uint16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if data.dtype == np.float32 and truncates:
        return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return data.astype(np.float32)


def checked_accesses() -> None:
    """Make Triton's interpreter raise `InvalidAccess` if a program reads or writes outside of the
    tensors of its launch, or if a hint of contiguity is wrong."""
    from triton.runtime import interpreter

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    bounds, hints = Bounds(), Hints()
    place, end = builder.set_grid_idx, executor._restore_args_dev
    begin, set_attr = executor._init_args_hst, interpreter.TensorHandle.set_attr

    def started(self: Any, given: Any, named: Any) -> Any:
        made = begin(self, given, named)
        bounds.set([*made[0], *made[1].values()])
        hints.start_launch()
        return made

    def placed(self: Any, *index: int) -> None:
        hints.start_program()
        place(self, *index)

    def ended(self: Any, *arguments: Any) -> None:
        end(self, *arguments)
        hints.check()

    def checked(name: str, verb: str, mask_at: int) -> None:
        original = getattr(builder, name)

        def function(self: Any, pointers: Any, *others: Any, **named: Any) -> Any:
            mask = others[mask_at].data
            item = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
            bounds.check(pointers.data, mask, item, verb)
            return original(self, pointers, *others, **named)

        setattr(builder, name, function)

    def hinted(self: Any, key: str, value: Any) -> None:
        if key == "tt.contiguity":
            hints.add(self.data, value)
        set_attr(self, key, value)

    checked("create_masked_load", "reads", 0)
    checked("create_masked_store", "writes", 1)
    builder.set_grid_idx = placed
    executor._init_args_hst, executor._restore_args_dev = started, ended
    interpreter.TensorHandle.set_attr = hinted


class Bounds:
    """Addresses of the tensors of a launch."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, int]] = []

    def set(self, arguments: list[Any]) -> None:
        """Replace the tensors by those of a launch; a descriptor counts as its tensor."""
        bases = [getattr(a, "base", None) if hasattr(a, "block_shape") else a for a in arguments]
        self._tensors = [extent(t) for t in bases if isinstance(t, torch.Tensor)]

    def check(self, pointers: Any, mask: Any, item: int, verb: str) -> None:
        """Raise if an unmasked pointer lies outside of all tensors."""
        at = np.broadcast_to(pointers, np.broadcast_shapes(pointers.shape, mask.shape))
        at = at[np.broadcast_to(mask, at.shape)].astype(np.int64)
        if at.size == 0:
            return
        least, most = int(at.min()), int(at.max()) + item
        if any(begin <= least and most <= end for begin, end in self._tensors):
            return
        inside = np.zeros(at.shape, bool)
        for begin, end in self._tensors:
            inside |= (begin <= at) & (at + item <= end)
        if not inside.all():
            one = int(at[~inside][0])
            begin, end = min(self._tensors, key=lambda t: max(t[0] - one, one + item - t[1]))
            raise InvalidAccess(
                f"{verb} {item} bytes at byte {one - begin} of a tensor which has {end - begin}; "
                f"{int((~inside).sum())} of {at.size} such addresses"
            )


class Hints:
    """The hints of contiguity of a launch, and the indices that its programs compute.

    The compiler takes vectors of at most the promised number of elements whose first index it knows
    to be divisible by their size. It derives that from the length of lines, at whose ends a hint
    may be wrong, or from a factor of all indices: a wrong hint for those is an error.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], list[bool]] = {}
        self._position = 0

    def start_launch(self) -> None:
        """Forget the programs of an earlier launch."""
        self._found.clear()

    def start_program(self) -> None:
        """Begin with a program's first hint."""
        self._position = 0

    def add(self, values: Any, counts: list[int]) -> None:
        """Add the indices that a program computes at its next hint."""
        self._position += 1
        for dim, count in enumerate(counts):
            lines = np.moveaxis(values, dim, -1).astype(np.int64)
            for size in (2, 4, 8):
                if size > count or lines.shape[-1] % size:
                    break
                groups = lines.reshape(-1, size)
                known = self._found.setdefault((self._position, dim, size), [True, True])
                known[0] &= bool((groups % size == 0).all())
                known[1] &= bool((np.diff(groups, axis=-1) == 1).all())

    def check(self) -> None:
        """Raise if elements of a vector are not adjacent."""
        for (position, _, size), (divisible, adjacent) in self._found.items():
            if divisible and not adjacent:
                raise InvalidAccess(f"hint {position}: {size} elements of a vector not adjacent")
