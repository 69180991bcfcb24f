"""Arenas: shared memory that the referee owns and lends to workers; both sides see it as tensors.

An arena has `count` slots of one layout: guard, tensor, guard, tensor, guard. On the CPU it is a
memfd. On the GPU it is plain device memory, shared by a CUDA IPC handle, so nothing is copied
through the host. A borrower can write anywhere in it. So a lender of inputs keeps the originals in
an arena that is not lent, and a lender of outputs poisons them first and checks the guards after.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cuagent.worker.memory import cuda_ipc

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 256
"""Alignment of tensors in bytes: the least that the allocators of CUDA and torch guarantee."""
GUARD = 0xC3
"""Value of the guard bytes between tensors."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
STRETCH = 1 << 24
"""Number of elements per comparison, because torch.equal allocates a boolean for each element."""
POISONS = (0xFF, 0x5A)
"""Two byte values to fill outputs with. In every floating dtype the first gives NaN and the second
a large finite number."""


@dataclass(frozen=True)
class Leaf:
    """Form and position of one tensor in a slot. `offset` and `nbytes` are in bytes, `stride` in
    elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """Positions of the tensors in one slot. `size` is the slot's number of bytes, guards
    included."""

    leaves: tuple[Leaf, ...]
    size: int

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Byte ranges [begin, end) of the guards: the parts of a slot outside every tensor."""
        edges = [0, *(e for leaf in self.leaves for e in (leaf.offset, leaf.offset + leaf.nbytes))]
        return list(zip(edges[::2], [*edges[1::2], self.size], strict=True))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        leaves = tuple(
            Leaf(x["dtype"], tuple(x["shape"]), tuple(x["stride"]), x["offset"], x["nbytes"])
            for x in data["leaves"]
        )
        return Layout(leaves, data["size"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def same_bytes(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors uint8[n] are equal; compares STRETCH elements at a time."""
    import torch

    if first.numel() % 8 == first.storage_offset() % 8 == second.storage_offset() % 8 == 0:
        first, second = first.view(torch.int64), second.view(torch.int64)
    stretches = zip(first.split(STRETCH), second.split(STRETCH), strict=True)
    return all(itertools.starmap(torch.equal, stretches))


def synchronize(device: str) -> None:
    """Wait until `device` has finished this process's queued work, before another process reads
    it."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def start_device(device: str) -> None:
    """Create this process's context on the device; a failure is left to its first real use."""
    import torch

    with suppress(RuntimeError):
        torch.zeros(1, device=device)


def layout_of(tensors: Sequence[Tensor], *, dense: bool = False, wide: bool = False) -> Layout:
    """Return a slot layout for tensors of these shapes, dtypes and strides.

    A tensor becomes contiguous if `dense`, or if its elements overlap in another way than by
    `expand`. With `wide`, floating tensors become float64 and complex ones complex128, as an
    oracle's answers need it.
    """
    import torch

    leaves: list[Leaf] = []
    offset = ALIGNMENT
    for tensor in tensors:
        dtype = tensor.dtype
        if wide and (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.complex128 if dtype.is_complex else torch.float64
        shape = tuple(tensor.shape)
        keeps_strides = not dense and tensor.layout is torch.strided and _repeats_only(tensor)
        stride = tuple(tensor.stride()) if keeps_strides else _packed(shape)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        nbytes = dtype.itemsize * extent if math.prod(shape) else 0
        leaves.append(Leaf(str(dtype).removeprefix("torch."), shape, stride, offset, nbytes))
        offset += math.ceil((nbytes + ALIGNMENT) / ALIGNMENT) * ALIGNMENT
    return Layout(tuple(leaves), offset)


def _repeats_only(tensor: Tensor) -> bool:
    """Return True if elements of the tensor share memory only because of `expand`, or not at
    all."""
    sized = sorted(
        (s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and s
    )
    extent = 0
    for stride, size in sized:
        if stride <= extent:
            return False
        extent += stride * (size - 1)
    return True


def fill(view: Tensor, tensor: Tensor) -> None:
    """Copy `tensor` into `view`, which has the same shape. Elements repeated by `expand` are copied
    once."""
    for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        if size > 1 and not stride:
            view, tensor = view.narrow(dim, 0, 1), tensor.narrow(dim, 0, 1)
    view.copy_(tensor)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))


class Arena:
    """`count` slots of `layout` in shared memory. Make one with `create` or `attach`, and `close`
    it."""

    def __init__(self, layout: Layout, count: int, device: str, lease: Lease | None = None):
        self.layout = layout
        self.count = count
        self.device = device
        self._lease = lease
        self._closed = False

    @staticmethod
    def create(layout: Layout, count: int, device: str) -> Arena:
        """Return a new arena. Its memory is allocated, and its guards are filled, at the first use,
        which may raise MemoryError."""
        return Arena(layout, count, device)

    @staticmethod
    def attach(description: dict[str, Any], descriptors: Sequence[int]) -> Arena:
        """Map an arena of another process, given what its `describe` returned there."""
        layout, count = Layout.from_json(description["layout"]), description["count"]
        size, device = layout.size * count, description["device"]
        if device == "cpu":
            # Map all pages now. Otherwise a fresh process takes page faults that an older one does
            # not: its calls took a tenth longer, more than its time slice on a busy machine.
            lease = _map(descriptors[0], size, mmap.MAP_POPULATE)
        else:
            lease = _open_handle(description["handle"], size)
        return Arena(layout, count, device, lease)

    def describe(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Return what another process needs for `attach`: a JSON object, and file descriptors to
        send."""
        lease = self._held()
        description = {"layout": self.layout.to_json(), "count": self.count, "device": self.device}
        if lease.descriptor is None:
            return description | {"handle": lease.handle}, ()
        return description, (lease.descriptor,)

    @property
    def size(self) -> int:
        """Bytes of all slots, even while no memory is allocated."""
        return self.layout.size * self.count

    @property
    def memory(self) -> Tensor:
        """All bytes of the arena as uint8[size]."""
        return self._held().memory

    def _held(self) -> Lease:
        assert not self._closed, "the arena is closed"
        if self._lease is None:
            self._lease = (_host_lease if self.device == "cpu" else _device_lease)(self.size)
            self.mend_guards()
        return self._lease

    @cached_property
    def slots(self) -> list[list[Tensor]]:
        """Tensors of each slot, as views of the shared memory."""
        return [
            [self._view(slot, leaf) for leaf in self.layout.leaves] for slot in range(self.count)
        ]

    def tensors(self, slot: int = 0) -> list[Tensor]:
        return self.slots[slot]

    @cached_property
    def _own_bytes(self) -> list[Tensor]:
        import torch

        sizes = [leaf.nbytes for leaf in self.layout.leaves]
        return [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]

    @cached_property
    def _own(self) -> list[Tensor]:
        return [
            _typed(own, leaf, self.device)
            for leaf, own in zip(self.layout.leaves, self._own_bytes, strict=True)
        ]

    def write(self, tensors: Sequence[Tensor], slot: int = 0) -> None:
        for view, tensor in zip(self.slots[slot], tensors, strict=True):
            fill(view, tensor)

    def copy_slot(self, originals: Arena, slot: int = 0, of: int | None = None) -> None:
        """Copy slot `of` (default: `slot`) of `originals` to `slot` of this arena, guards included.

        Both arenas must have the same layout.
        """
        size, of = self.layout.size, slot if of is None else of
        self._bytes(slot, 0, size).copy_(originals._bytes(of, 0, size))

    def copy_rotated(self, originals: Arena, slot: int = 0) -> None:
        """Copy a slot's tensors from `originals`, with the rows of floating tensors rotated by a
        random count.

        That gives different inputs with the same numbers, without further memory.
        """
        for view, tensor in zip(self.tensors(slot), originals.tensors(slot), strict=True):
            rows = tensor.shape[0] if tensor.dim() else 0
            if not tensor.is_floating_point() or rows < 2 or not tensor.stride(0):
                fill(view, tensor)
                continue
            by = 1 + secrets.randbelow(rows - 1)
            fill(view[:by], tensor[rows - by :])
            fill(view[by:], tensor[: rows - by])

    def slot_equals(self, originals: Arena, slot: int = 0, of: int | None = None) -> bool:
        """Return True if `slot` equals slot `of` (default: `slot`) of `originals` in every byte."""
        size, of = self.layout.size, slot if of is None else of
        return same_bytes(self._bytes(slot, 0, size), originals._bytes(of, 0, size))

    def snapshot(self, slot: int = 0) -> list[Tensor]:
        """Return clones of a slot's tensors in memory that no borrower can reach."""
        return [view.clone() for view in self.slots[slot]]

    def poison(self, byte: int, slot: int | None = None) -> None:
        """Fill the tensors of one slot, or of all slots if None, with a byte."""
        for number in range(self.count) if slot is None else [slot]:
            for leaf in self.layout.leaves:
                self._bytes(number, leaf.offset, leaf.offset + leaf.nbytes).fill_(byte)

    def own_copy(self, slot: int) -> list[Tensor]:
        """Return private copies of a slot's tensors. All slots use the same addresses, so a call
        overwrites the copies of the last call."""
        for leaf, own in zip(self.layout.leaves, self._own_bytes, strict=True):
            own.copy_(self._bytes(slot, leaf.offset, leaf.offset + leaf.nbytes))
        return self._own

    def drop_own_copies(self) -> None:
        """Free the memory that `own_copy` allocated."""
        for copies in ("_own", "_own_bytes"):
            self.__dict__.pop(copies, None)

    def mend_guards(self, slot: int | None = None, byte: int = GUARD) -> None:
        """Fill the guards of one slot, or of all slots if None, with `byte`."""
        for number in range(self.count) if slot is None else [slot]:
            for gap in self._gaps(number):
                gap.fill_(byte)

    def guards_hold(self, slot: int | None = None) -> bool:
        """Return True if every guard byte of one slot, or of all if None, still has the value
        GUARD."""
        slots = range(self.count) if slot is None else [slot]
        return all(bool((gap == GUARD).all()) for number in slots for gap in self._gaps(number))

    def guards_like(self, originals: Arena, slot: int, of: int) -> bool:
        """Return True if the guards of `slot` equal those of slot `of` of `originals`."""
        import torch

        return all(map(torch.equal, self._gaps(slot), originals._gaps(of)))

    def close(self) -> None:
        """Release the memory for good. The views must not be used any more."""
        self.give_back()
        self._closed = True

    def give_back(self) -> None:
        """Release the memory until the next use. The views must not be used any more, and no other
        process may have the arena attached."""
        for views in ("slots", "_own", "_own_bytes"):
            self.__dict__.pop(views, None)
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def clear(self) -> None:
        """Return the pages to the system until the next write; other processes keep their mapping.

        All bytes become zero, guards included. On a GPU nothing happens: its memory can only be
        released while no other process has it open.
        """
        if self._lease is not None and self._lease.mapping is not None:
            self._lease.mapping.madvise(mmap.MADV_REMOVE)

    def _bytes(self, slot: int, begin: int, end: int) -> Tensor:
        base = slot * self.layout.size
        return self.memory[base + begin : base + end]

    def _gaps(self, slot: int) -> list[Tensor]:
        return [self._bytes(slot, begin, end) for begin, end in self.layout.gaps]

    def _view(self, slot: int, leaf: Leaf) -> Tensor:
        flat = self._bytes(slot, leaf.offset, leaf.offset + leaf.nbytes)
        return _typed(flat, leaf, self.device)


def _typed(flat: Tensor, leaf: Leaf, device: str) -> Tensor:
    """Return the bytes `flat`, uint8[leaf.nbytes], as the tensor that `leaf` describes."""
    import torch

    dtype = getattr(torch, leaf.dtype)
    if leaf.nbytes == 0:
        return torch.empty(leaf.shape, dtype=dtype, device=device)
    return flat.view(dtype).as_strided(leaf.shape, leaf.stride)


class Lease:
    """A piece of shared memory as a tensor, with the descriptor or handle to lend it and the
    function to free it."""

    def __init__(
        self,
        memory: Tensor,
        descriptor: int | None = None,
        handle: str | None = None,
        mapping: mmap.mmap | None = None,
        free: tuple[Any, int] | None = None,
    ):
        self.memory = memory
        self.descriptor = descriptor
        self.handle = handle
        self.mapping = mapping
        self._free = free

    def release(self) -> None:
        del self.memory
        self.mapping = None
        if self.descriptor is not None:
            os.close(self.descriptor)
        if self._free is not None:
            function, pointer = self._free
            function(pointer)


def _host_lease(size: int) -> Lease:
    descriptor = os.memfd_create("cuagent-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    # If a borrower could shrink the file, every access to the missing part would raise SIGBUS.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return _map(descriptor, size)


def _map(descriptor: int, size: int, flags: int = 0) -> Lease:
    import torch

    # The mapping lives as long as its tensors; closing the descriptor does not unmap it.
    memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED | flags)
    return Lease(torch.frombuffer(memory, dtype=torch.uint8), descriptor, mapping=memory)


def _device_lease(size: int) -> Lease:
    pointer = cuda_ipc.allocate(size)
    tensor = cuda_ipc.as_tensor(pointer, size)
    return Lease(tensor, handle=cuda_ipc.export(pointer), free=(cuda_ipc.free, pointer))


def _open_handle(handle: str, size: int) -> Lease:
    pointer = cuda_ipc.open_handle(handle)
    return Lease(cuda_ipc.as_tensor(pointer, size), free=(cuda_ipc.close_handle, pointer))
