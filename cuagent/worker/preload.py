"""Import packages of a task and torch.compile in the fork server, so that its children need not.

`transformers` takes five seconds and torch.compile six, in each of some fifteen processes. A child
may use the modules only if the import starts no thread, does not start CUDA (which refuses to work
in children then), and stores no value that would be wrong in the child (`forget_folders`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

COMPILER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._dynamo.backends.inductor",
    "torch.distributed.tensor.experimental._func_map",
    "torch.utils.cpp_extension",
    "torch.export",
)
"""Modules of torch.compile, including those that torch.compile imports only at the first call."""
Step = Callable[[], None]


def import_packages(packages: Sequence[str], *, on_gpu: bool) -> bool:
    """Import installed packages, given as `module` or `module:name`; return True if children can
    use them.

    Returns False if a package started CUDA, or a thread that still runs after a fork. A package
    whose import fails is skipped: the task's own process reports the error.
    """
    gc.disable()  # imports create no garbage, and collecting makes them a tenth slower
    import numpy  # noqa: F401
    import torch  # noqa: F401

    before = _threads_after_fork()
    with cuda_not_started() if on_gpu else contextlib.nullcontext():
        for entry in packages:
            module, _, name = entry.partition(":")
            with contextlib.suppress(Exception, SystemExit):
                imported = importlib.import_module(module)
                if name:
                    getattr(imported, name)  # a package may import its parts when asked for them
    return _children_may_use_cuda() and _threads_after_fork() <= before


def compiler_steps(*, on_gpu: bool) -> list[Step]:
    """Return functions that together import torch.compile; each takes at most some seconds."""
    modules: list[Step] = [functools.partial(_import_compiler, m, on_gpu) for m in COMPILER]
    return [*modules, _note_sources]


def _import_compiler(module: str, on_gpu: bool) -> None:
    """Import one module of torch.compile; ignore a failure."""
    gc.disable()
    shield = cuda_not_started() if on_gpu else contextlib.nullcontext()
    with shield, contextlib.suppress(Exception):  # a baseline that needs it reports the failure
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _note_sources() -> None:
    """Hash the sources of torch and Triton once; their caches of compiled code use the hash as a
    version.

    Otherwise each process that compiles or loads a kernel hashes them again: 0.25 s and 0.9 s.
    """
    with contextlib.suppress(Exception):
        from torch._inductor.codecache import torch_key

        torch_key()
    with contextlib.suppress(Exception):
        from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

        if HAS_TRITON:
            triton_key()


@contextlib.contextmanager
def cuda_not_started() -> Iterator[None]:
    """Let torch report one GPU within the block, without any CUDA call.

    If a process only asks whether a GPU exists, as `torch._inductor` does on import, CUDA refuses
    to work in its children. Code that needs more than this answer fails within the block.
    """
    import torch

    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "_lazy_init", _refuse),
            (torch._C, "_cuda_getDeviceCount", lambda: 1),
        ):
            if (original := getattr(owner, name, None)) is not None:
                setattr(owner, name, replacement)
                stack.callback(setattr, owner, name, original)
        yield


def _refuse() -> NoReturn:
    raise RuntimeError("CUDA starts after the fork")


def forget_folders() -> None:
    """Reset the temporary folder that modules stored before the fork, so that they use the child's
    own."""
    tempfile.tempdir = None
    if (codecache := sys.modules.get("torch._inductor.codecache")) is not None:
        # Inductor notes the folder of its C++ headers when it is imported.
        ours = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        folder = ours / "precompiled_headers"
        codecache._HEADER_DIR = str(folder)  # type: ignore[attr-defined]
        codecache._HEADER_LOCK_DIR = str(folder / "locks")  # type: ignore[attr-defined]
        tempfile.tempdir = None


def _children_may_use_cuda() -> bool:
    """Return True if CUDA can start in a child of this process."""
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0


def _threads_after_fork() -> int:
    """Return the number of threads that this process still has after a fork.

    OpenBLAS, which transformers imports through scipy and scikit-learn if they are installed, ends
    its threads before a fork and starts them again when they are needed.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(list(Path("/proc/self/task").iterdir()))
