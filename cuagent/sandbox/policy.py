"""Access rights of an untrusted process, and the tiers of isolation.

This module has data only. `cuagent.sandbox.enter` applies a policy to the calling process, and
`wrap` to a command.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuagent.library_folders import VARIABLE, library_folders

TASKS = 64 + 4 * (os.cpu_count() or 1)
"""Default limit on processes and threads: enough for an OpenMP pool on each core, too few for a
fork bomb."""

GPU_FILES = 1024
"""Number of descriptors that CUDA and its tools may have open."""


class SandboxError(Exception):
    """Error: the sandbox could not be set up, so no untrusted code may run. The message is one
    line."""


class Tier(StrEnum):
    """Level of isolation of an untrusted process, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    """Everything of LANDLOCK, inside a separate file system; for commands only."""
    LANDLOCK = "landlock"
    """Landlock, seccomp, no_new_privs and resource limits; for root also a separate user id and
    network."""
    NONE = "none"
    """Resource limits only; every verdict says UNISOLATED."""


@dataclass(frozen=True)
class Policy:
    """Access rights of an untrusted process. Everything that is not granted is denied."""

    read: tuple[Path, ...] = ()
    """Readable paths in addition to the system's libraries and the interpreter."""
    write: tuple[Path, ...] = ()
    """Writable folders, which must exist; the first is also HOME and TMPDIR."""
    gpu: bool = False
    """True to allow the devices /dev/nvidia*."""
    network: bool = False
    interpreter: bool = True
    """True to make this Python, its site-packages and `library_folders` readable."""
    children: bool = False
    """True to allow child processes to read /proc too, as CUDA needs it. They can then read names
    and command lines of other processes, but not their memory and environment."""
    processes: int = TASKS
    open_files: int = 256
    """Largest number of open descriptors of each process; with `gpu` at least `GPU_FILES`."""
    file_bytes: int = 1 << 30
    memory_bytes: int | None = None
    """Largest private writable memory of each process in bytes (RLIMIT_DATA; the address space is
    not limited, because CUDA reserves far more than it uses). Ignored with `gpu`: the caller must
    check `resident`."""
    own_uid: bool = True
    """True to run under a separate user id if the caller is root."""
    fds: tuple[int, ...] = (0, 1, 2)
    """Descriptors that stay open; all others are closed."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables to set in addition to those in PASSED_ON."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)


def policy_from_json(text: str) -> Policy:
    """Return the policy that `Policy.to_json` wrote as JSON."""
    values: dict[str, Any] = json.loads(text)
    for name in ("read", "write"):
        values[name] = tuple(Path(path) for path in values[name])
    values["fds"] = tuple(values["fds"])
    values["environment"] = tuple((key, value) for key, value in values["environment"])
    return Policy(**{field.name: values[field.name] for field in fields(Policy)})


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
             "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
             "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")  # fmt: skip


def readable(policy: Policy) -> list[Path]:
    """Return the existing paths that a process under `policy` may read."""
    names = list(SYSTEM)
    if policy.gpu:
        names += SYSTEM_GPU
    if policy.network:
        names += NETWORK
    if policy.interpreter:
        names += [sys.prefix, sys.base_prefix, sys.exec_prefix]
        names += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        names += library_folders()
    if home := os.environ.get("CUDA_HOME"):
        names.append(home)
    found = {Path(name) for name in names} | set(policy.read)
    return sorted(path for path in found if path.exists() and path != Path("/"))


def gpu_devices(devices: Path = Path("/dev")) -> list[Path]:
    """Return the device files of NVIDIA's driver, and of WSL2, below `devices`."""
    found = [path for path in devices.glob("nvidia*") if not path.is_dir()]
    found += devices.glob("nvidia-caps/*")
    return sorted([*found, *devices.glob("dxg")])


def environment(policy: Policy) -> dict[str, str]:
    """Return the environment variables of a process under `policy`. API keys are not among them."""
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables |= {"USER": "cuagent", "LOGNAME": "cuagent", "PYTHONDONTWRITEBYTECODE": "1"}
    if policy.interpreter and (folders := library_folders()):
        variables |= {VARIABLE: os.pathsep.join(folders)}
    if policy.write:
        home = str(policy.write[0])
        variables |= {"HOME": home, "TMPDIR": home, "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor"}
        variables |= {"TRITON_HOME": home, "TRITON_CACHE_DIR": f"{home}/triton"}
    return variables | dict(policy.environment)
