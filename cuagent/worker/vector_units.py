"""Let torch.compile skip its tests of vector instructions once they passed on this machine.

Before its first C++ kernel torch.compile builds and loads a test program for each set of vector
instructions. That takes some ten runs of the compiler in every process with its own cache, which
includes every candidate. A compiled baseline keeps its cache in the user's folder and makes the
same tests. If all passed, it writes a note there, and candidates then skip the tests.

The note is valid for one version of torch, one processor and one compiler. Without it candidates
make the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"
"""Environment variable of torch.compile; "1" makes it skip its tests of vector instructions."""
FILE = "vector-units.json"


def note_passed() -> None:
    """Record in torch.compile's cache folder that all its tests of vector instructions passed.

    Does nothing if this process did not make the tests, or one failed.
    """
    caches = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    module = sys.modules.get("torch._inductor.cpu_vec_isa")
    with suppress(AttributeError, OSError):  # another torch names these parts differently
        if module is None or not module.valid_vec_isa_list.cache_info().currsize:
            return
        flags = module.x86_isa_checker()
        named = [
            isa for isa in module.supported_vec_isa_list if set(str(isa).split()) <= set(flags)
        ]
        if module.valid_vec_isa_list() == named != [] and not all_passed(caches):
            (caches / FILE).write_text(json.dumps(_machine()))


def all_passed(caches: Path) -> bool:
    """Return True if the cache folder records that this machine passed all tests of vector
    instructions."""
    try:
        return bool(json.loads((caches / FILE).read_text()) == _machine())
    except (OSError, ValueError):
        return False


def skip_tests() -> None:
    """Make torch.compile skip its tests of vector instructions if the environment variable VARIABLE
    is "1"."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and os.environ.get(VARIABLE) == "1":
        config.cpp.vec_isa_ok = True


def _machine() -> dict[str, str]:
    import torch

    compiler = shutil.which(os.environ.get("CXX", "g++")) or ""
    stamp = Path(compiler).stat().st_mtime_ns if compiler else 0
    cpu = next((t for t in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in t), "")
    flags = hashlib.sha256(cpu.encode()).hexdigest()
    return {"torch": torch.__version__, "processor": flags, "compiler": f"{compiler} {stamp}"}
