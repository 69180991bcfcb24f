"""Load plain kernels and call them with tensors: `load("kernels/scale.cu").scale(y, x, 2.0, n)`.

A source exports `extern "C"` functions and includes no torch header, so it compiles in a second
instead of a minute. The loader reads the prototypes from its text and checks every call against
them before it passes a pointer. It knows three forms:

- `.cpp` with launchers: g++ with OpenMP, tensors on the CPU;
- `.cu` with launchers: nvcc; a last parameter `cudaStream_t` receives the current stream;
- `.cu` that exports `__global__` kernels only: NVRTC, launched as `kernel[grid, block, smem](...)`.

A channels-last tensor is passed as its contiguous permutation, or to `scale.last(0, 1)`, which
takes such tensors at these positions. Not covered: other strided tensors, structures by value,
autograd. torch.compile keeps `load(...).operator(name)` as one call.
Invariant: this package does not import the rest of cuagent, because exported packages carry a copy
of it. It imports torch only in the functions that handle tensors.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .compiler import CompileFailed, CompilerMissing, read_recipe, shared_library
from .prototypes import PrototypeError, parse
from .sources import unchanged, watch

__all__ = [
    "CompileFailed",
    "CompilerMissing",
    "Kernels",
    "PrototypeError",
    "compile_together",
    "load",
    "replay",
    "unchanged",
    "watch",
]


class Kernels:
    """The exported functions of one source file, as attributes."""

    def __init__(self, source: Path, library: Path, functions: dict[str, Any]) -> None:
        self.__file__ = str(source)
        self.library = library
        self.__dict__.update(functions)
        self._names = tuple(functions)

    def operator(self, name: str) -> Any:
        """Return the launcher `name` as an operator of torch, which torch.compile keeps as one
        call."""
        from .calls import Launcher
        from .operators import operator_of

        launcher = getattr(self, name)
        if not isinstance(launcher, Launcher):
            raise TypeError(f"{name} is no launcher; export a function that launches the kernel")
        return operator_of(launcher, self.library, launcher.on_cuda)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f'{Path(self.__file__).name} exports no extern "C" function {name!r}; '
            f"it has {', '.join(self._names)}"
        )

    def __deepcopy__(self, memo: object) -> Kernels:
        return self

    def __reduce__(self) -> Any:
        return load, (self.__file__,)

    def __repr__(self) -> str:
        return f"<kernels {self.__file__}: {', '.join(self._names)}>"


def replay(
    module: Any, compute: Any, arguments: tuple[Any, ...], prepare: Any = None, cache: str = ""
) -> Any:
    """Return `compute(module, *arguments, *prepare())`, replayed as a CUDA graph where possible.

    The graph reads the tensors that `prepare` returns in place (`cuda_graph.replay`).
    """
    from . import cuda_graph

    return cuda_graph.replay(module, compute, arguments, prepare, cache)


def compile_together(warm_ups: Any) -> None:
    """Call `warm_ups` once, which calls `warmup` of Triton kernels, and compile them in parallel
    (`together.compile_together`)."""
    from . import together

    together.compile_together(warm_ups)


_LOADED: dict[Path, Kernels] = {}


def load(path: str | Path) -> Kernels:
    """Load the exported functions of a source file; compile it first if no compiled library is
    found.

    `path` is relative to the caller's file. Raises FileNotFoundError, PrototypeError,
    CompilerMissing or CompileFailed.
    """
    source = Path(path)
    if not source.is_absolute():
        caller = sys._getframe(1).f_globals.get("__file__")
        source = (Path(caller).parent if caller else Path.cwd()) / source
    if not source.is_file():
        sources = sorted(file.name for file in source.parent.glob("*.c*"))
        hint = f"the folder has {', '.join(sources)}" if sources else "the folder has no sources"
        raise FileNotFoundError(f"no kernel source {source}; {hint}")
    recipe = read_recipe(source)
    library = shared_library(recipe)
    if library not in _LOADED:
        _LOADED[library] = _open(source, library, recipe.form)
    return _LOADED[library]


def _open(source: Path, library: Path, form: str) -> Kernels:
    prototypes = parse(source.read_text(encoding="utf-8"), source.name)
    if library.suffix == ".cubin":
        from .driver import open_cubin

        return Kernels(source, library, open_cubin(library, prototypes))
    from .calls import open_library

    return Kernels(source, library, open_library(library, prototypes, on_cuda=form == "nvcc"))
