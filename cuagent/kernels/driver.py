"""Launch kernels of a cubin through the CUDA driver: `kernel[grid, block, smem](...)`.

The launch uses the primary context, which torch uses too, and the current stream. Arguments are
checked as for launchers. A failed launch raises RuntimeError with the name of the CUDA error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .calls import CheckedArguments, c_type
from .prototypes import Prototype

MAX_DYNAMIC_SHARED = 8
"""Value of CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES in cuda.h."""
DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a kernel may use without setting MAX_DYNAMIC_SHARED."""

BUFFER_POINTER, BUFFER_SIZE = 1, 2
"""Tags of cuLaunchKernel for passing all parameters as one block with the layout of a C
structure."""

Extent = int | tuple[int, ...]


def open_cubin(path: Path, prototypes: Iterable[Prototype]) -> dict[str, Any]:
    """Return an object for each `__global__` kernel of a cubin file, by name.

    The first launch on a device loads the cubin there.
    """
    image = path.read_bytes()
    return {p.name: Kernel(image, p) for p in prototypes if p.kernel}


class Kernel:
    """A `__global__` kernel; launch it as `kernel[grid, block](...)` or `kernel[grid, block,
    smem](...)`."""

    def __init__(self, image: bytes, prototype: Prototype) -> None:
        import torch

        self.prototype = prototype
        self._image = image
        self._checked = CheckedArguments(prototype, on_cuda=True)
        fields = [(f"p{i}", c_type(p)) for i, p in enumerate(prototype.parameters)]
        self._block = type("Parameters", (ctypes.Structure,), {"_fields_": fields})
        # The size that the driver expects excludes the padding at the end of a C structure.
        last = getattr(self._block, fields[-1][0]) if fields else None
        self._size = ctypes.c_size_t(last.offset + last.size if last else 0)
        self._functions: dict[int, ctypes.c_void_p] = {}
        self._allowed: dict[int, int] = {}
        self._current_device = torch._C._cuda_getDevice
        self._current_stream = torch._C._cuda_getCurrentRawStream

    def __getitem__(self, shape: tuple[Any, ...]) -> Launch:
        name = self.prototype.name
        if not isinstance(shape, tuple) or len(shape) not in (2, 3):
            raise TypeError(f"{name}: launch as kernel[grid, block] or kernel[grid, block, smem]")
        grid, block, *shared = shape
        return Launch(self, _extent(grid), _extent(block), *shared)

    def __call__(self, *arguments: Any) -> None:
        name = self.prototype.name
        raise TypeError(f"{name} is a __global__ kernel: launch as kernel[grid, block](...)")

    def launch(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared: int, arguments: tuple[Any, ...]
    ) -> None:
        """Check the arguments and launch the kernel on the current stream.

        Raises the same errors as a Launcher.
        """
        values, device = self._checked(arguments)
        current = self._current_device()
        if device in (-1, current):
            self._enqueue(current, grid, block, shared, values)
        else:
            import torch

            with torch.cuda.device(device):
                self._enqueue(device, grid, block, shared, values)

    def _enqueue(
        self,
        device: int,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int,
        values: list[Any],
    ) -> None:
        function = self._functions.get(device) or self._function(device)
        if shared > DEFAULT_SHARED and shared > self._allowed.get(device, 0):
            _check("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
            self._allowed[device] = shared
        parameters = self._block(*values)
        address, size = ctypes.addressof(parameters), ctypes.addressof(self._size)
        extra = _Extra(BUFFER_POINTER, address, BUFFER_SIZE, size, None)
        stream = self._current_stream(device)
        _check("cuLaunchKernel", function, *grid, *block, shared, stream, None, extra)

    def _function(self, device: int) -> ctypes.c_void_p:
        import torch

        # This call makes the primary context exist and current.
        torch.cuda.synchronize(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check("cuModuleLoadData", ctypes.byref(module), self._image)
        name = self.prototype.name.encode()
        _check("cuModuleGetFunction", ctypes.byref(function), module, name)
        self._functions[device] = function
        return function


class Launch:
    """A kernel together with grid, block and shared memory; calling it launches on the current
    stream."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], shared: int = 0
    ) -> None:
        self._kernel, self._grid, self._block, self._shared = kernel, grid, block, shared

    def __call__(self, *arguments: Any) -> None:
        self._kernel.launch(self._grid, self._block, self._shared, arguments)


_Extra = ctypes.c_void_p * 5


def _extent(value: Extent) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    return (*sizes, 1, 1)[:3]


@functools.cache
def _driver() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    unsigned, pointer = ctypes.c_uint, ctypes.c_void_p
    cuda.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    return cuda


def _check(call: str, *arguments: Any) -> None:
    status = getattr(_driver(), call)(*arguments)
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"{call}: CUDA error {status} ({(name.value or b'unknown').decode()})")
