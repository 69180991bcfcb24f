"""Find the compilers of this machine, with their base flags and a name that identifies their
results.

Floating point: IEEE semantics, except that a*b+c may be contracted to one rounding (as nvcc and
torch do). A source requests more by a line such as `// cuagent: flags -ffast-math`.

OpenMP: two runtimes in one process would start two thread pools and oversubscribe the cores. torch
carries a copy of libgomp. If that copy has the plain name `libgomp.so.1` and torch is loaded first,
the dynamic linker uses it for our libraries too. If its name has a hash, our libraries link it by
path ahead of the system's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiler import Recipe

FORMAT = "2"
"""Version of the cache keys; increase it when the meaning of a key changes."""
ARCH = "CUAGENT_CUDA_ARCH"
"""Environment variable with the compute capability to compile for, such as 90a.

If it is not set, sources are compiled for the current device.
"""
DEFAULT_ARCH = "90a"
"""Compute capability to compile for if the machine has no GPU."""

CPU_FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wl,--no-undefined"),
    # Keep IEEE results. Give up only errno and floating-point traps, which prevent vectorization.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    "-Wunknown-pragmas",
)
CUDA_FLAGS = (
    *("-shared", "-O3", "-lineinfo", "-std=c++17", "--resource-usage"),
    *("-Xcompiler", "-fPIC", "-Xlinker", "--no-undefined"),
)
NVRTC_FLAGS = ("-lineinfo", "-std=c++17", "--ptxas-options=-v")
CUBIN_FLAGS = ("-cubin", "-O3", "-lineinfo", "-std=c++17", "--resource-usage")

X86 = ("x86_64", "AMD64")
"""Values of platform.machine() for which g++ has the flag -mprefer-vector-width."""
# -ffast-math would also link start-up code that flushes denormals in the whole process.
FAST_MATH = (
    *("-fassociative-math", "-fno-signed-zeros", "-freciprocal-math", "-ffinite-math-only"),
    *("-fno-rounding-math", "-fcx-limited-range", "-D__FAST_MATH__=1"),
)

SHIM = """#include <cuda_runtime_api.h>
extern "C" __attribute__((visibility("default"))) int cuagent_last_error() {
  return (int)cudaGetLastError();
}
extern "C" __attribute__((visibility("default"))) const char* cuagent_error_name(int e) {
  return cudaGetErrorName((cudaError_t)e);
}
"""
"""Code that is added to every .cu library. Each library links its own CUDA runtime statically; this
code reads the error state of that runtime."""

DEPENDENCIES = ("dependencies.compiler", "dependencies.assembler")
"""Names of two files in the scratch folder, in which the compiler and the assembler list the files
that they read."""


class CompilerMissing(RuntimeError):
    """Error: the compiler that a source needs is not installed. The message is one line."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its base flags. Toolchains with different results have different names."""

    form: str
    command: tuple[str, ...]
    libraries: tuple[str, ...]
    """Arguments for the linker, which must follow the source on the command line."""
    target: str
    """Machine that the results run on: `sm_90a`, or `cpu-` and a digest of the processor's
    features."""
    version: str
    name: str

    @property
    def lists_incbin(self) -> bool:
        """True if the assembler can list the files of `.incbin`, as GNU as can."""
        return self.form == "g++" and "clang" not in self.version

    def argv(self, recipe: Recipe, output: Path, scratch: Path) -> list[str]:
        """Return the command line that compiles `recipe` to the file `output`.

        `scratch` is an empty writable folder. The command must run in the folder of the source, so
        that `__FILE__` is the same everywhere.
        """
        more = [f for flag in recipe.requested_flags for f in _expanded(flag, self.form)]
        if self.form == "nvcc":
            (scratch / "cuagent_shim.h").write_text(SHIM)
            more += ["-include", str(scratch / "cuagent_shim.h")]
        if self.form != "nvrtc":
            more += ["-MD", "-MF", str(scratch / DEPENDENCIES[0])]
        if self.lists_incbin:
            more.append(f"-Wa,--MD,{scratch / DEPENDENCIES[1]}")
        # "./" keeps the compiler from reading a name that begins with "-" as an option.
        source = f"./{recipe.source.name}"
        return [*self.command, *more, "-o", str(output), source, *self.libraries]


def _expanded(flag: str, form: str) -> tuple[str, ...]:
    if form == "g++":
        if flag.startswith("-mprefer-vector-width") and platform.machine() not in X86:
            return ()  # a package may be built on another processor than its kernels were made on
        return FAST_MATH if flag == "-ffast-math" else (flag,)
    if flag == "-ffast-math":
        return ("--use_fast_math",)
    # nvcc passes flags of the host compiler on after -Xcompiler.
    return ("-Xcompiler", flag) if flag.startswith(("-f", "-mp")) and form == "nvcc" else (flag,)


@functools.cache
def toolchain(form: str, arch: str = "") -> Toolchain:
    """Return the installed compiler for sources of the form `g++`, `nvcc`, `nvrtc` or `cubin`.

    `arch` is a compute capability such as 90a; "" means this machine's. Raises CompilerMissing.
    """
    machine = f"sm_{arch}" if arch and form != "g++" else target(form)
    libraries: tuple[str, ...] = ()
    command: tuple[str, ...]
    if form == "g++":
        compiler = _gxx()
        command = (compiler, *CPU_FLAGS)
        libraries = _openmp()
    elif form == "nvrtc" and (nvrtc := _nvrtc()):
        compiler = nvrtc
        script = str(Path(__file__).with_name("nvrtc.py"))
        command = (sys.executable, "-I", script, nvrtc, f"-arch={machine}", *NVRTC_FLAGS)
    else:
        compiler = nvcc()
        number = machine.removeprefix("sm_")
        code = ("-gencode", f"arch=compute_{number},code=sm_{number}")
        command = (compiler, *(CUDA_FLAGS if form == "nvcc" else CUBIN_FLAGS), *code)
    version = Path(compiler).name if ".so" in compiler else _version(compiler)
    identity = [_identity(compiler), version]
    if form in ("nvcc", "cubin") and (host := shutil.which(os.environ.get("NVCC_CCBIN") or "gcc")):
        identity += [_identity(host), _version(host)]
    parts = "\0".join((FORMAT, *identity, *command[1:], *libraries, SHIM))
    name = f"{machine}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"
    return Toolchain(form, command, libraries, machine, version, name)


def _gxx() -> str:
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted) or shutil.which("c++")
    if found is None:
        raise CompilerMissing("no C++ compiler found: install g++ or set CXX to one")
    return found


def nvcc() -> str:
    """Return the path of nvcc. Raises CompilerMissing."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if found is None:
        raise CompilerMissing("no nvcc found: install the CUDA toolkit or set CUDA_HOME")
    return found


def _nvrtc() -> str | None:
    """Return the path of libnvrtc in torch's NVIDIA wheels, else in the toolkit; None if there is
    none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    matches = [f.glob("*/lib/libnvrtc.so.*") for f in folders] + [
        Path(home).glob("lib64/libnvrtc.so.*")
    ]
    found = [str(p) for match in matches for p in sorted(match) if "builtins" not in p.name]
    return found[0] if found else None


def _openmp() -> tuple[str, ...]:
    """Return linker arguments for torch's copy of libgomp if its file name has a hash, else ()."""
    spec = importlib.util.find_spec("torch")
    home = Path(spec.origin).parent if spec and spec.origin else None
    if home is None:
        return ()
    hashed = [*home.glob("lib/libgomp-*.so*"), *home.parent.glob("torch.libs/libgomp-*.so*")]
    return ("-Wl,--as-needed", str(hashed[0])) if hashed else ()


def _identity(compiler: str) -> str:
    """Return the path and size of a compiler's program, since two builds may print the same
    version."""
    path = Path(compiler).resolve()
    return f"{path} {path.stat().st_size if path.is_file() else 0}"


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else compiler)


def runs_on(target: str) -> tuple[str, ...]:
    """Return the targets whose compiled code runs on a machine of `target`, the best first.

    For a GPU: code runs on later minor versions of the same major one, except code with an "a".
    `sm_90a` gives ("sm_90a", "sm_90").
    """
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", target)
    if found is None:
        return (target,)
    lower = (f"sm_{found[1]}{minor}" for minor in range(int(found[2]), -1, -1))
    return tuple(dict.fromkeys((target, *lower)))


@functools.cache
def target(form: str) -> str:
    """Return the name of this machine as a target of compilation.

    For a GPU it is the architecture, such as `sm_90a`; for g++ `cpu-` and a digest of the
    processor's features.
    """
    if form != "g++":
        return f"sm_{os.environ.get(ARCH) or _device_arch() or DEFAULT_ARCH}"
    info = Path("/proc/cpuinfo")
    features = (
        re.search(r"^(?:flags|Features).*$", info.read_text(), re.MULTILINE)
        if info.exists()
        else None
    )
    processor = features[0] if features else platform.processor()
    text = f"{platform.machine()} {platform.system()} {processor}"
    return f"cpu-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _device_arch() -> str | None:
    """Return the current GPU's compute capability, with "a" for architecture-specific code; None
    without a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
    elif (smi := shutil.which("nvidia-smi")) is not None:
        # A process that may still fork must not initialize CUDA, so ask nvidia-smi.
        query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
        answer = re.match(
            r"(\d+)\.(\d+)", subprocess.run(query, capture_output=True, text=True).stdout
        )
        if answer is None:
            return None
        major, minor = int(answer[1]), int(answer[2])
    elif torch is not None and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
    else:
        return None
    return f"{major}{minor}" + ("a" if major >= 9 else "")
