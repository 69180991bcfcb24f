"""Share GPU memory between two processes, with five calls of the CUDA driver.

torch's own sharing uses pickles and a reference-counting file in /dev/shm; neither may come from an
untrusted process.

Not covered: legacy IPC handles do not work across PID namespaces.

All functions use the primary context of the current device, as torch does.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * _HANDLE_BYTES)]


class CudaMemoryError(MemoryError):
    """Error: a call of the CUDA driver failed. The message names the call."""


def allocate(size: int) -> int:
    """Allocate `size` bytes of GPU memory and return their device address. Raises
    CudaMemoryError."""
    import torch

    pointer = ctypes.c_uint64()
    try:
        _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    except CudaMemoryError as error:
        there = torch.cuda.mem_get_info()[0]
        raise CudaMemoryError(
            f"the GPU has {there / 2**30:.3g} GiB free, but one allocation needs "
            f"{size / 2**30:.3g} GiB; use a smaller task or end other processes on the GPU "
            f"({error})"
        ) from None
    return pointer.value


def free(pointer: int) -> None:
    _call("cuMemFree_v2", ctypes.c_uint64(pointer))


def export(pointer: int) -> str:
    """Return the IPC handle of the allocation at device address `pointer`, in hexadecimal."""
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return bytes(handle.reserved).hex()


def open_handle(handle: str) -> int:
    """Map another process's allocation, given its IPC handle; return its device address in this
    process."""
    pointer = ctypes.c_uint64()
    raw = _Handle.from_buffer_copy(bytes.fromhex(handle))
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), raw, _LAZY_ENABLE_PEER_ACCESS)
    return pointer.value


def close_handle(pointer: int) -> None:
    _call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))


def as_tensor(pointer: int, size: int) -> Tensor:
    """Return uint8[size] on the GPU memory at `pointer`. The tensor does not free the memory."""
    import torch

    class Region:
        __cuda_array_interface__ = {  # noqa: RUF012 (the protocol's own form)
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }

    return torch.as_tensor(Region(), device="cuda")


@cache
def _driver() -> ctypes.CDLL:
    import torch

    torch.cuda.init()
    return ctypes.CDLL("libcuda.so.1")


@cache
def _context(device: int) -> ctypes.c_void_p:
    """Return the primary CUDA context of a device. It is retained until the process ends."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    return context


def _call(name: str, *arguments: object) -> None:
    import torch

    # A context is current per thread, and torch sets it only when it allocates.
    _check("cuCtxSetCurrent", _context(torch.cuda.current_device()))
    _check(name, *arguments)


def _check(name: str, *arguments: object) -> None:
    error = getattr(_driver(), name)(*arguments)
    if error:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(error, ctypes.byref(text))
        raise CudaMemoryError(f"{name}: {(text.value or b'unknown error').decode()} ({error})")
