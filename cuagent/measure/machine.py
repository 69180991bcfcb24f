"""Check that the machine has what cuagent uses: compilers, a GPU, permissions, sandbox.

A finding about something missing includes advice. Nothing is changed. Only findings marked as
`needed` are required.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cuagent.build import versions
from cuagent.measure import system_load
from cuagent.sandbox import Policy, Tier, memory_bound, probe, probe_forked, stamp


@dataclass(frozen=True)
class Finding:
    """Result of one check of the machine."""

    name: str
    good: bool
    said: str
    """Result in words, such as a version."""
    advice: str = ""
    """Advice to the user if `good` is False."""
    needed: bool = False


def examine() -> list[Finding]:
    """Run all checks and return their findings, the most important first.

    Takes a second or two, because torch is imported.
    """
    checks: list[Callable[[], list[Finding]]] = [_python, _compilers, _gpu, _counters, _isolation]
    return [finding for check in checks for finding in check()]


def _python() -> list[Finding]:
    import torch

    recent = sys.version_info >= (3, 11)
    named = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return [
        Finding("Python", recent, platform.python_version(), "use 3.11 or later", needed=True),
        Finding("torch", named >= (2, 6), torch.__version__, "install torch 2.6 or later", True),
        Finding("processor", True, f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"),
    ]


def _compilers() -> list[Finding]:
    found = versions()
    advice = {
        "g++": "install g++ (or clang as c++): kernels for the CPU need it",
        "nvcc": "install the CUDA toolkit or set CUDA_HOME: .cu files with launchers need it",
        "nvrtc": "comes with torch's CUDA packages; .cu files with kernels only build faster",
    }
    findings = [
        Finding(
            form,
            form in found,
            " ".join(found.get(form, "not found").split())[:70],
            text,
            needed=form == "g++",
        )
        for form, text in advice.items()
    ]
    ninja = shutil.which("ninja") is not None or _importable("ninja")
    return [
        *findings,
        Finding("ninja", ninja, "found" if ninja else "not found", "pip install ninja"),
    ]


def _gpu() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = "torch finds none" if built else "this torch is built for the CPU"
        return [Finding("GPU", False, reason, "CPU tasks work; for CUDA install torch with CUDA")]
    properties = torch.cuda.get_device_properties(0)
    driver = Path("/proc/driver/nvidia/version")
    version = driver.read_text().split("  ")[1].strip() if driver.exists() else "unknown"
    held = system_load.gpu_in_use_by_others()
    return [
        Finding("GPU", True, f"{properties.name}, sm_{properties.major}{properties.minor}"),
        Finding("CUDA", True, f"{torch.version.cuda}, driver {version}"),
        Finding(
            "GPU not shared",
            held < 1 << 28,
            f"{held / 1e9:.1f} GB held by other processes" if held else "no other process found",
            "timings are noisier; end the other processes",
        ),
    ]


def _counters() -> list[Finding]:
    ncu = shutil.which("ncu")
    params = Path("/proc/driver/nvidia/params")
    if ncu is None:
        return [Finding("ncu", False, "not found", "install Nsight Compute for hardware counters")]
    restricted = params.exists() and "RmProfilingAdminOnly: 1" in params.read_text()
    readable = os.geteuid() == 0 or not restricted
    return [
        Finding(
            "ncu counters",
            readable,
            f"{ncu}, {'readable' if readable else 'for administrators only'}",
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    ]


def _isolation() -> list[Finding]:
    import torch

    tier = probe_forked()
    policy = Policy(gpu=torch.cuda.is_available(), memory_bytes=memory_bound())
    commands = "; commands in bubblewrap" if probe() is Tier.BUBBLEWRAP else ""
    return [
        Finding(
            "isolation",
            tier is not Tier.NONE,
            stamp(tier, policy) + commands,
            "candidates run unisolated: use Linux 5.13 or later with Landlock; a root without its "
            "usual capabilities (some containers) should be another user",
        )
    ]


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None
