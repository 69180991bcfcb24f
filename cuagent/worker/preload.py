"""Import in the fork server what its children would each import: a task's packages, torch.compile.

`transformers` takes five seconds and torch.compile six, in each of some fifteen processes. A child
may use the modules only if the import starts no thread, does not start CUDA (which refuses to work
in children then), and notes nothing that is different in the child (`forget_folders`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
"""Parts of torch.compile."""


def import_packages(packages: Sequence[str], *, on_gpu: bool) -> bool:
    """Import installed packages, given as `module` or `module:name`.

    Returns False if children could not use them or the GPU: a package started a thread or CUDA. A
    package that cannot be imported is left out: the task's own process reports it.
    """
    gc.disable()  # imports create no garbage, and collecting makes them a tenth slower
    import numpy  # noqa: F401
    import torch  # noqa: F401

    before = _threads()
    with cuda_not_started() if on_gpu else contextlib.nullcontext():
        for entry in packages:
            module, _, name = entry.partition(":")
            with contextlib.suppress(Exception, SystemExit):
                imported = importlib.import_module(module)
                if name:
                    getattr(imported, name)  # a package may import its parts when asked for them
    return _threads() == before and _children_may_use_cuda()


def import_compiler(module: str, *, on_gpu: bool) -> None:
    """Import a part of torch.compile."""
    gc.disable()
    shield = cuda_not_started() if on_gpu else contextlib.nullcontext()
    with shield, contextlib.suppress(Exception):  # a baseline that needs it reports the failure
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def cuda_not_started() -> Iterator[None]:
    """Let torch report one GPU within the block, without a call of CUDA.

    CUDA refuses to work in the children of a process that only asked if a GPU is there, as
    `torch._inductor` does when it is imported. Code that needs more than the answer fails.
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
    """Let modules that were imported before the fork use the child's folder of temporary files."""
    tempfile.tempdir = None
    if (codecache := sys.modules.get("torch._inductor.codecache")) is not None:
        # Inductor notes the folder of its C++ headers when it is imported.
        ours = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        folder = ours / "precompiled_headers"
        codecache._HEADER_DIR = str(folder)  # type: ignore[attr-defined]
        codecache._HEADER_LOCK_DIR = str(folder / "locks")  # type: ignore[attr-defined]
        tempfile.tempdir = None


def _children_may_use_cuda() -> bool:
    """Return False if CUDA refuses to start in a child of this process."""
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
