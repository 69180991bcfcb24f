"""Call a library's exported launchers: check and convert each argument, then call the C function.

Without the checks, a mistake in Python would crash the process without a message. The checks are
chosen once per function, so that a call costs a few microseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .prototypes import Parameter, Prototype

CTYPES: dict[str, Any] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "uint8": ctypes.c_uint8,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
}
LAST_ERROR = "cuagent_last_error"
ERROR_NAME = "cuagent_error_name"

Convert = Callable[[Any], Any]


def open_library(path: Path, prototypes: Iterable[Prototype], on_cuda: bool) -> dict[str, Any]:
    """Load a compiled library and return a checked callable for each exported function, by name.

    `on_cuda`: the tensors must be on a GPU.
    """
    # Import torch first, so that its copy is the only OpenMP runtime in the process.
    import torch  # noqa: F401

    library = ctypes.CDLL(str(path))
    return {p.name: Launcher(library, p, on_cuda) for p in prototypes if not p.kernel}


class Launcher:
    """An exported C function that can be called with tensors and numbers.

    A call raises TypeError, ValueError, OverflowError or RuntimeError.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        prototype: Prototype,
        on_cuda: bool,
        images: frozenset[int] = frozenset(),
    ) -> None:
        self._library = library
        self.prototype = prototype
        self._checked = CheckedArguments(prototype, on_cuda, images)
        self._function = library[prototype.name]
        types = [c_type(parameter) for parameter in prototype.parameters]
        self._function.argtypes = types + [ctypes.c_void_p] * prototype.stream
        self._function.restype = ctypes.c_int if prototype.returns_status else None
        self.on_cuda = on_cuda
        if on_cuda:
            import torch

            self._current_stream = torch._C._cuda_getCurrentRawStream
            self._current_device = torch._C._cuda_getDevice
            self._last_error = library[LAST_ERROR]
            self._error_name = library[ERROR_NAME]
            self._error_name.restype = ctypes.c_char_p

        self._quick = quick_arguments(prototype, on_cuda, images)

    def last(self, *positions: int) -> Launcher:
        """Return a launcher whose arguments at these positions must be images in channels-last
        memory: tensors of four dimensions that are contiguous in `torch.channels_last`."""
        return Launcher(self._library, self.prototype, self.on_cuda, frozenset(positions))

    def __call__(self, *arguments: Any) -> None:
        values, device = self._quick(*arguments) or self._checked(arguments)
        if not self.on_cuda:
            status = self._function(*values)
            if status:
                raise RuntimeError(f"{self.prototype.name} returned {status}")
            return
        current = self._current_device()
        if device < 0:
            device = current
        if device == current:
            self._launch(values, device)
        else:
            import torch

            with torch.cuda.device(device):
                self._launch(values, device)

    def _launch(self, values: list[Any], device: int) -> None:
        if self.prototype.stream:
            values.append(self._current_stream(device))
        # A failed launch (too much shared memory, a bad grid) is reported only here.
        status = self._function(*values) or self._last_error()
        if status:
            self._last_error()
            name = self._error_name(status).decode()
            raise RuntimeError(f"{self.prototype.name}: CUDA error {status} ({name}) at launch")

    def __repr__(self) -> str:
        parameters = ", ".join(p.text for p in self.prototype.parameters)
        return f"<launcher {self.prototype.name}({parameters})>"


class CheckedArguments:
    """Converts the arguments of a call to C values and the index of the CUDA device (-1 for the
    CPU).

    `images`: positions of tensors that must be in channels-last memory; others are contiguous.
    """

    def __init__(
        self, prototype: Prototype, on_cuda: bool, images: frozenset[int] = frozenset()
    ) -> None:
        self._name = prototype.name
        self._parameters = prototype.parameters
        self._on_cuda = on_cuda
        self._converters = [
            _converter(prototype.name, i, p, i in images) for i, p in enumerate(self._parameters)
        ]
        self._pointers = [i for i, p in enumerate(self._parameters) if p.pointer]

    def __call__(self, arguments: tuple[Any, ...]) -> tuple[list[Any], int]:
        if len(arguments) != len(self._converters):
            expected = ", ".join(p.text for p in self._parameters) or "none"
            raise TypeError(
                f"{self._name} takes {len(self._converters)} arguments ({expected}), "
                f"got {len(arguments)}"
            )
        values = [
            convert(value) for convert, value in zip(self._converters, arguments, strict=True)
        ]
        device = -1
        for i in self._pointers:
            tensor = arguments[i]
            if tensor is None:
                continue
            index = tensor.get_device()
            if (index >= 0) is not self._on_cuda or (0 <= device != index):
                raise self._misplaced(i, tensor, device)
            device = index
        return values, device

    def _misplaced(self, i: int, tensor: Any, device: int) -> ValueError:
        where = argument(self._name, i, self._parameters[i])
        if not self._on_cuda:
            return ValueError(f"{where} is on {tensor.device}; a .cpp kernel takes CPU tensors")
        if device < 0:
            return ValueError(f"{where} is on {tensor.device}; a .cu kernel takes CUDA tensors")
        return ValueError(
            f"{where} is on {tensor.device}, but an earlier tensor is on cuda:{device}; "
            "move all tensors to one device"
        )


def quick_arguments(
    prototype: Prototype, on_cuda: bool, images: frozenset[int] = frozenset()
) -> Callable[..., Any]:
    """Return a fast function that converts the arguments of a usual call to C values and the
    device.

    For any other call it returns None: numbers of other types, null pointers, empty tensors,
    mistakes. `CheckedArguments` then converts or refuses the arguments. The function's source is
    generated without a loop, which halves the time of a call.
    """
    import torch

    names = [f"a{k}" for k in range(len(prototype.parameters))]
    scope: dict[str, Any] = {"Tensor": torch.Tensor, "last": torch.channels_last}
    tests, values, device = [], [], "-1"
    for k, (name, parameter) in enumerate(zip(names, prototype.parameters, strict=True)):
        if parameter.pointer:
            layout = "memory_format=last" if k in images else ""
            tests.append(f"isinstance({name}, Tensor) and {name}.is_contiguous({layout})")
            dtype = _tensor_dtype(parameter.type)
            if dtype is not None:
                scope[f"t_{name}"] = dtype
                tests.append(f"{name}.dtype is t_{name}")
            place = f"(device := {name}.get_device())" if device == "-1" else f"{name}.get_device()"
            wanted = "device" if device == "device" else "0"
            tests.append(f"{place} {'>=' if on_cuda and wanted == '0' else '=='} {wanted}")
            if not on_cuda:
                tests[-1] = f"{name}.get_device() < 0"
            device = "device" if on_cuda else "-1"
            tests.append(f"(p_{name} := {name}.data_ptr())")
            values.append(f"p_{name}")
        elif parameter.type in ("float", "double"):
            tests.append(f"type({name}) is float")
            values.append(name)
        else:
            return lambda *arguments: None
    condition = " and ".join(tests) or "True"
    given = [f"{name}=None" for name in names]
    text = f"def quick({', '.join([*given, '*more'])}):\n    if not more and {condition}:\n"
    text += f"        return [{', '.join(values)}], {device}\n    return None\n"
    exec(text, scope)
    quick: Callable[..., Any] = scope["quick"]
    return quick


def c_type(parameter: Parameter) -> Any:
    """Return the ctypes class for a parameter's C type."""
    return ctypes.c_void_p if parameter.pointer else CTYPES[parameter.type]


def argument(function: str, index: int, parameter: Parameter) -> str:
    """Return the name of an argument for error messages, such as "scale: argument 1 `float* y`"."""
    return f"{function}: argument {index + 1} `{parameter.text}`"


def _converter(function: str, index: int, parameter: Parameter, image: bool) -> Convert:
    where = argument(function, index, parameter)
    if parameter.pointer:
        return _pointer(where, parameter.type, image)
    if parameter.type in ("float", "double"):
        return _real(where)
    if parameter.type == "bool":
        return _boolean(where)
    bits = int(parameter.type.lstrip("uint"))
    signed = parameter.type[0] == "i"
    low = -(1 << bits - 1) if signed else 0
    return _integer(where, low, (1 << bits - signed) - 1)


def _tensor_dtype(element: str) -> Any:
    """Return the dtype of tensors that may be passed as a pointer to `element`; None for any
    (void*)."""
    import torch

    dtypes: dict[str, Any] = {"float": torch.float32, "double": torch.float64, "half": torch.half}
    return None if element == "void" else dtypes.get(element) or getattr(torch, element)


def _pointer(where: str, element: str, image: bool) -> Convert:
    import torch

    tensor_type, dtype = torch.Tensor, _tensor_dtype(element)
    layout = torch.channels_last if image else torch.contiguous_format

    def convert(value: Any) -> Any:
        if not isinstance(value, tensor_type):
            if value is None:
                return None
            raise TypeError(
                f"{where} takes a tensor (or None for a null pointer), got {_described(value)}"
            )
        if value.dtype is not dtype and dtype is not None:
            hint = ""
            if value.dtype.itemsize == dtype.itemsize:
                hint = f"; declare void*, or pass its bits with .view({dtype})"
            raise TypeError(f"{where} takes a tensor of {dtype}, got {value.dtype}{hint}")
        if not value.is_contiguous(memory_format=layout):
            raise ValueError(
                f"{where} has strides {value.stride()} for shape {tuple(value.shape)}; "
                f"call .contiguous({'memory_format=torch.channels_last' if image else ''})"
            )
        pointer = value.data_ptr()
        if not pointer and value.is_meta:
            raise ValueError(f"{where} is a meta tensor and holds no data")
        return pointer

    return convert


def _real(where: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is float or type(value) is int:
            return value
        if isinstance(value, bool) or _is_tensor(value) or not hasattr(value, "__float__"):
            raise TypeError(f"{where} takes a number, got {_described(value)}")
        return float(value)

    return convert


def _boolean(where: str) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, (bool, int)) and value in (0, 1):
            return bool(value)
        raise TypeError(f"{where} takes True or False, got {_described(value)}")

    return convert


def _integer(where: str, low: int, high: int) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not int:
            if isinstance(value, bool) or _is_tensor(value) or not hasattr(value, "__index__"):
                raise TypeError(f"{where} takes an integer, got {_described(value)}")
            value = value.__index__()
        if low <= value <= high:
            return value
        raise OverflowError(f"{where}: {value} does not fit into [{low}, {high}]")

    return convert


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def _described(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)} (pass a scalar as x.item())"
    return f"{type(value).__name__} {value!r}"[:80]
