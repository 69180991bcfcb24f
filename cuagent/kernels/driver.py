"""Kernels of a cubin, launched through the CUDA driver: `kernel[grid, block, smem](...)`.

Uses the primary context, which is torch's, and the current stream. Arguments are checked as those
of launchers are; a failing launch raises RuntimeError with the name of the CUDA error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .calls import CheckedArguments, c_type
from .prototypes import Prototype

MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
FREE_SHARED = 48 << 10
"""Bytes of dynamic shared memory that need no leave."""

Extent = int | tuple[int, ...]


def open_cubin(path: Path, prototypes: Iterable[Prototype]) -> dict[str, Any]:
    """One launchable object per `__global__` kernel; modules are loaded per device, when needed."""
    image = path.read_bytes()
    return {p.name: Kernel(image, p) for p in prototypes if p.kernel}


class Kernel:
    """A `__global__` kernel; `kernel[grid, block]` or `kernel[grid, block, shared_bytes]`."""

    def __init__(self, image: bytes, prototype: Prototype) -> None:
        self.prototype = prototype
        self._image = image
        self._checked = CheckedArguments(prototype, on_cuda=True)
        self._types = [c_type(parameter) for parameter in prototype.parameters]
        self._functions: dict[int, ctypes.c_void_p] = {}
        self._allowed: dict[int, int] = {}

    def __getitem__(self, shape: tuple[Any, ...]) -> Launch:
        if not isinstance(shape, tuple) or len(shape) not in (2, 3):
            raise TypeError(
                f"{self.prototype.name}: launch as kernel[grid, block] or [grid, block, smem]"
            )
        grid, block, *shared = shape
        return Launch(self, _extent(grid), _extent(block), *shared)

    def __call__(self, *arguments: Any) -> None:
        raise TypeError(
            f"{self.prototype.name} is a __global__ kernel: launch as kernel[grid, block](...)"
        )

    def launch(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared: int, arguments: tuple[Any, ...]
    ) -> None:
        import torch

        values, device = self._checked(arguments)
        with torch.cuda.device(device if device >= 0 else torch.cuda.current_device()):
            current = torch.cuda.current_device()
            function = self._function(current)
            if shared > max(FREE_SHARED, self._allowed.get(current, 0)):
                _check("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
                self._allowed[current] = shared
            cells = [kind(value) for kind, value in zip(self._types, values, strict=True)]
            pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
            stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(current))
            _check("cuLaunchKernel", function, *grid, *block, shared, stream, pointers, None)

    def _function(self, device: int) -> ctypes.c_void_p:
        if device not in self._functions:
            import torch

            # Makes sure that the primary context exists and is current.
            torch.cuda.synchronize(device)
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            _check("cuModuleLoadData", ctypes.byref(module), self._image)
            name = self.prototype.name.encode()
            _check("cuModuleGetFunction", ctypes.byref(function), module, name)
            self._functions[device] = function
        return self._functions[device]


class Launch:
    """A kernel with its launch shape; calling it runs it on the current stream."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], shared: int = 0
    ) -> None:
        self._kernel, self._grid, self._block, self._shared = kernel, grid, block, shared

    def __call__(self, *arguments: Any) -> None:
        self._kernel.launch(self._grid, self._block, self._shared, arguments)


def _extent(value: Extent) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    return (*sizes, 1, 1)[:3]


def _check(call: str, *arguments: Any) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    status = cuda[call](*arguments)
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"{call}: CUDA error {status} ({(name.value or b'unknown').decode()})")
