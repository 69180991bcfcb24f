"""What an untrusted process may touch, and how firmly a machine can hold it to that.

Data only. `cuagent.sandbox.enter` applies a policy to the calling process, `wrap` to a command.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

TASKS = 64 + 4 * (os.cpu_count() or 1)
"""Processes and threads: an OpenMP pool per core with room, and far from a fork bomb."""

GPU_FILES = 1024
"""Descriptors that CUDA and its tools may need."""


class SandboxError(Exception):
    """The sandbox could not be set up; nothing untrusted may run. One line."""


class Tier(StrEnum):
    """How an untrusted process is held, from the firmest to none at all."""

    BUBBLEWRAP = "bubblewrap"
    """Commands see a file system of their own; inside it, everything of LANDLOCK."""
    LANDLOCK = "landlock"
    """Landlock, seccomp, no_new_privs, limits; a uid and a network of its own where root."""
    NONE = "none"
    """Limits only. Every verdict says UNISOLATED."""


@dataclass(frozen=True)
class Policy:
    """Everything not named here is refused: other files, other processes, the network."""

    read: tuple[Path, ...] = ()
    """Beside the system's libraries and the interpreter: the attempt, the build cache."""
    write: tuple[Path, ...] = ()
    """Existing folders; the first is also HOME and TMPDIR."""
    gpu: bool = False
    """Whether /dev/nvidia* may be used."""
    network: bool = False
    interpreter: bool = True
    """Whether this Python and its site-packages may be read."""
    children: bool = False
    """Whether programs that the process starts may use /proc too, as CUDA must. Names and command
    lines of other processes can then be read; their memory and environment cannot."""
    processes: int = TASKS
    open_files: int = 256
    """Descriptors of each process. Under `gpu` at least `GPU_FILES`."""
    file_bytes: int = 1 << 30
    memory_bytes: int | None = None
    """Private writable memory of each process (RLIMIT_DATA, never the address space, of which CUDA
    reserves far more than it uses). Without effect under `gpu`: the caller watches `resident`."""
    own_uid: bool = True
    """Run under a user id of its own where the caller is root."""
    fds: tuple[int, ...] = (0, 1, 2)
    """Descriptors that stay open; all others are closed."""
    environment: tuple[tuple[str, str], ...] = ()
    """Set beside the few harmless variables that are passed on."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)


def policy_from_json(text: str) -> Policy:
    """The inverse of `Policy.to_json`."""
    given: dict[str, Any] = json.loads(text)
    for name in ("read", "write"):
        given[name] = tuple(Path(path) for path in given[name])
    given["fds"] = tuple(given["fds"])
    given["environment"] = tuple((key, value) for key, value in given["environment"])
    return Policy(**{field.name: given[field.name] for field in fields(Policy)})


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/localtime", "/etc/OpenCL", "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
PROC = ("cpuinfo", "meminfo", "stat", "filesystems", "devices", "version", "loadavg", "uptime")
PROC_GPU = ("driver", "modules")
SYSTEM_GPU = (
    "/sys/devices",
    "/sys/module",
    "/sys/bus/pci",
    "/sys/class",
)
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl", "/etc/ca-certificates", "/etc/services")
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TERM", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
             "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # fmt: skip


def readable(policy: Policy) -> list[Path]:
    """All that exists of what `policy` lets be read."""
    names = list(SYSTEM)
    if policy.gpu:
        names += SYSTEM_GPU
    if policy.network:
        names += NETWORK
    if policy.interpreter:
        names += [sys.prefix, sys.base_prefix, sys.exec_prefix]
        names += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    if home := os.environ.get("CUDA_HOME"):
        names.append(home)
    found = {Path(name) for name in names} | set(policy.read)
    return sorted(path for path in found if path.exists() and path != Path("/"))


def gpu_devices() -> list[Path]:
    """Device nodes of NVIDIA's driver, and of WSL2's."""
    found = [path for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    found += Path("/dev").glob("nvidia-caps/*")
    return sorted([*found, *Path("/dev").glob("dxg")])


def environment(policy: Policy) -> dict[str, str]:
    """The variables an untrusted process starts with: none that could carry a secret."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    kept |= {"USER": "cuagent", "LOGNAME": "cuagent", "PYTHONDONTWRITEBYTECODE": "1"}
    if policy.write:
        home = str(policy.write[0])
        kept |= {"HOME": home, "TMPDIR": home, "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor"}
        kept |= {"TRITON_HOME": home, "TRITON_CACHE_DIR": f"{home}/triton"}
    return kept | dict(policy.environment)
