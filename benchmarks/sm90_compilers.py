"""Compile generated CUDA C++ and Triton kernels for sm_90 or another GPU, without having one.

A Triton kernel is compiled as its launch would compile it: the lines that launch it are executed
with recorders in place of the kernels, and with tensors that have a shape and a dtype but no
memory. Triton assumes then, as for tensors of torch, that pointers are multiples of 16 bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from sm90_figures import Code, read_code

NVCC = ("nvcc", "-cubin", "-O3", "-std=c++17", "-keep", "-keep-dir")
HOPPER = (9, 0)
BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)\s*(\w+)\(")


@dataclass(frozen=True)
class Source:
    """A generated kernel's source, without what names its problem."""

    language: str
    """`cuda` or `triton`."""
    name: str
    text: str
    headers: tuple[str, ...] = ()
    """CUDA: names of the package's headers that the text includes."""
    launch: tuple[str, ...] = ()
    """Triton: lines of Python that launch the kernel."""
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Triton: name, dtype and shape of each tensor in `launch`."""
    capability: tuple[int, int] = HOPPER
    """Compute capability of the GPU for which it is compiled."""

    @property
    def digest(self) -> str:
        """Hash of everything that decides the compiled code, except compilers."""
        parts = [self.language, self.text, self.headers, self.launch, self.tensors]
        parts += [] if tuple(self.capability) == HOPPER else [self.capability]
        return hashlib.sha256(json.dumps(parts).replace(self.name, "kernel").encode()).hexdigest()[
            :16
        ]


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel of a source, or the error of its compiler."""

    code: Code | None = None
    threads: int = 0
    """Threads of a block."""
    dynamic_shared: int = 0
    options: str = ""
    """Triton: values of the constants, warps and stages."""
    seconds: float = 0.0
    """Processor time of the compiler."""
    error: str = ""


def compiled(source: Source) -> list[Compiled]:
    """Compile all kernels of a source, and return their figures."""
    with tempfile.TemporaryDirectory() as folder:
        start = _processor_seconds()
        try:
            found = list((_by_nvcc if source.language == "cuda" else _by_triton)(source, folder))
        except Exception as error:  # noqa: BLE001 - compilers raise errors of many types
            seconds = _processor_seconds() - start
            return [Compiled(seconds=seconds, error=f"{type(error).__name__}: {error}"[:500])]
    return found


def _processor_seconds() -> float:
    """Return the processor time of this process and of the processes that it has awaited."""
    return sum(os.times()[:4])


def _by_nvcc(source: Source, folder: str) -> Iterator[Compiled]:
    path = Path(folder) / "kernel.cu"
    path.write_text(source.text)
    for header in source.headers:
        text = (files("cuagent.expert.streaming") / header).read_text("utf-8")
        (path.parent / header).write_text(text)
    start = _processor_seconds()
    cubin = path.with_suffix(".cubin")
    done = subprocess.run(
        [*NVCC, folder, f"-arch={architecture(source.capability)}", str(path), "-o", str(cubin)],
        capture_output=True,
        text=True,
    )
    seconds = _processor_seconds() - start
    if done.returncode:
        yield Compiled(seconds=seconds, error=done.stderr[:500])
        return
    threads = {name: int(count) for count, name in BOUNDS.findall(source.text)}
    for code in _figures(cubin, path.with_suffix(".ptx").read_text()):
        own = [name for name in threads if name in code.name]
        count = threads[max(own, key=len)]
        yield Compiled(code, count, 0, "", seconds)


def architecture(capability: tuple[int, int]) -> str:
    """Return nvcc's name of a GPU, with the instructions of that GPU alone from Hopper on."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' * (major >= HOPPER[0])}"


@dataclass
class _Recorder:
    """Stands for a Triton kernel; keeps the arguments of its launches."""

    kernel: Any
    launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **words: self.launches.append((args, words))


def _by_triton(source: Source, folder: str) -> Iterator[Compiled]:
    import triton

    path = Path(folder) / f"kernel_{source.digest}.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    kernels = {k: v for k, v in vars(module).items() if isinstance(v, triton.JITFunction)}
    recorders = {name: _Recorder(kernel) for name, kernel in kernels.items()}
    scope: dict[str, Any] = {"torch": torch, **vars(module), **recorders}
    for name, dtype, shape in source.tensors:
        scope[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    exec("\n".join(source.launch), scope)
    for recorder in recorders.values():
        for arguments, words in recorder.launches:
            given = recorder.kernel, arguments, words
            yield _compiled_launch(*given, Path(folder), source.capability)


def _compiled_launch(
    kernel: Any,
    arguments: tuple[Any, ...],
    words: dict[str, Any],
    folder: Path,
    capability: tuple[int, int],
) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import native_specialize_impl

    major, minor = capability
    target = GPUTarget("cuda", 10 * major + minor, 32)
    backend = type(make_backend(target))
    signature, constants, aligned = {}, {}, {}
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | words
    for place, parameter in enumerate(kernel.params):
        value = given.pop(parameter.name)
        kind, align = "constexpr", None
        if not parameter.is_constexpr:
            kind, align = native_specialize_impl(backend, value, False, True, True)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(place,)] = value
        elif align == "D":
            aligned[(place,)] = [["tt.divisibility", 16]]
    text = ", ".join(map(str, [*constants.values(), *(f"{k}={v}" for k, v in given.items())]))
    start = _processor_seconds()
    try:
        made = triton.compile(ASTSource(kernel, signature, constants, aligned), target, given)
    except Exception as error:  # noqa: BLE001 - compilers raise errors of many types
        seconds = _processor_seconds() - start
        words_of_error = f"{type(error).__name__}: {error}"[:500]
        return Compiled(options=text, seconds=seconds, error=words_of_error)
    seconds = _processor_seconds() - start
    cubin = folder / f"{kernel.__name__}.cubin"
    cubin.write_bytes(made.asm["cubin"])
    (code,) = _figures(cubin, made.asm["ptx"])
    return Compiled(code, 32 * made.metadata.num_warps, made.metadata.shared, text, seconds)


def _figures(cubin: Path, ptx: str) -> list[Code]:
    import triton

    tool = str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    command = [tool, "-res-usage", str(cubin)]
    return read_code(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout, ptx
    )
