"""From a source to a loadable library: which compiler, which flags, and where the result lies.

Libraries are found by content: first in the folders named by CUAGENT_BUILD (read only, filled by
whoever built before), then in `prebuilt/` beside the source, then in the user's cache, else they
are compiled into that cache. The key covers the source, the local headers it reaches and the flags
it asks for; the compiler, its version, the processor and the base flags are the toolchain, one
cache folder each, so that a process that only looks things up needs no compiler.

Floating point: IEEE semantics, except that a*b+c may be contracted to one rounding (as nvcc and
torch do). A source asks for more by a line `// cuagent: flags -ffast-math`, from ALLOWED_FLAGS.

OpenMP: two runtimes in one process would start two thread pools and oversubscribe the cores.
torch carries its own libgomp. Where that copy has the plain name `libgomp.so.1` the dynamic linker
takes it for ours as well, if torch was loaded first; where its name carries a hash, it is linked by
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
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BUILD = "CUAGENT_BUILD"
"""Environment: folders of ready libraries, separated as in PATH."""
ARCH = "CUAGENT_CUDA_ARCH"
"""Environment: compute capability to compile for instead of the present device's, such as 90a."""
DEFAULT_ARCH = "90a"
"""Where there is no device to ask: so that a source can at least be compiled."""
FORMAT = "1"
"""Counts up when keys made before no longer mean the same."""
SECONDS = 300.0
SILENT = "the compiler failed and printed nothing"

CPU_FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wl,--no-undefined"),
    # Keep IEEE results; give up only errno and floating-point traps, which block vectorising.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    "-Wunknown-pragmas",
)
CUDA_FLAGS = (
    *("-shared", "-O3", "-lineinfo", "-std=c++17", "--resource-usage"),
    *("-Xcompiler", "-fPIC", "-Xlinker", "--no-undefined"),
)
NVRTC_FLAGS = ("-lineinfo", "-std=c++17", "--ptxas-options=-v")
CUBIN_FLAGS = ("-cubin", "-O3", "-lineinfo", "-std=c++17", "--resource-usage")

ALLOWED_FLAGS = re.compile(
    r"-ffast-math|-fassociative-math|-fno-signed-zeros|-freciprocal-math|-ffinite-math-only"
    r"|-ffp-contract=(off|on|fast)|-O[0-3]|-std=c\+\+(17|20|23)|-funroll-loops"
    r"|-mprefer-vector-width=(128|256|512)|--?use_fast_math|--?fmad=(true|false)"
    r"|--?ftz=(true|false)|--?prec-(div|sqrt)=(true|false)|--?maxrregcount=\d+"
    r"|--extra-device-vectorization|--expt-relaxed-constexpr|--extended-lambda|-lcuda"
    r"|-D\w+(=[\w.+-]+)?"
)
# -ffast-math itself would link start-up code that flushes denormals in the whole process.
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
"""Part of every .cu library: its runtime is linked statically and has its own error state."""

_ASKED = re.compile(r"^[ \t]*//[ \t]*cuagent:[ \t]*flags[ \t]+(.*)$", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_SYSTEM = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_NVRTC_KNOWS = re.compile(
    r"cuda|mma\.h|cooperative_groups|math_constants\.h|(c?stdint|c?math|c?float|c?limits)(\.h)?$"
)
_ERROR = re.compile(r"\berror\s*:|\): error|undefined reference")
_KERNEL_ONLY = re.compile(r'extern\s*"C"\s*(\{\s*)?__global__')


class CompilerMissing(RuntimeError):
    """The compiler that a source needs is not installed. One line."""


class CompileFailed(RuntimeError):
    """The compiler refused the source; `output` is all it printed."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Recipe:
    """How one source becomes a library, before any compiler is looked for."""

    source: Path
    form: str
    """`g++` or `nvcc`; `nvrtc`, or else `cubin`, where only `__global__` kernels are exported."""
    asked: tuple[str, ...]
    """Flags that the source asks for."""
    key: str
    """sha256 over source, local headers and asked flags."""

    @property
    def file(self) -> str:
        """Name of the result in every folder that may hold it."""
        return f"{self.key}.{'cubin' if self.form in ('nvrtc', 'cubin') else 'so'}"


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its base flags; `name` changes whenever its results would."""

    form: str
    command: tuple[str, ...]
    libraries: tuple[str, ...]
    """Linker inputs, which must follow the source."""
    target: str
    """`sm_90a`, or `cpu-` and a digest of the processor's features."""
    version: str
    name: str

    def argv(self, how: Recipe, output: Path, scratch: Path) -> list[str]:
        """The command that compiles `how` to `output`; `scratch` is an empty writable folder."""
        asked = [f for flag in how.asked for f in _expanded(flag, self.form)]
        shim: list[str] = []
        if self.form == "nvcc":
            (scratch / "cuagent_shim.h").write_text(SHIM)
            shim = ["-include", str(scratch / "cuagent_shim.h")]
        return [*self.command, *asked, *shim, "-o", str(output), str(how.source), *self.libraries]


def recipe(source: Path) -> Recipe:
    """Read a source and the headers it reaches. Raises CompileFailed for a flag not allowed."""
    text = source.read_text(encoding="utf-8")
    asked = tuple(flag for line in _ASKED.findall(text) for flag in line.split())
    for flag in asked:
        if not ALLOWED_FLAGS.fullmatch(flag):
            message = f"the flag {flag} is not among those a source may ask for"
            raise CompileFailed(f"{source.name}: {message}", message)
    form = _form(source, text)
    digest = hashlib.sha256()
    for part in (FORMAT, form, *asked, text, *_headers(source, text)):
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    return Recipe(source, form, asked, digest.hexdigest())


def _form(source: Path, text: str) -> str:
    if source.suffix == ".cpp":
        return "g++"
    if source.suffix != ".cu":
        message = "a kernel source ends with .cu or .cpp"
        raise CompileFailed(f"{source.name}: {message}", message)
    if "<<<" in text or not _KERNEL_ONLY.search(text):
        return "nvcc"
    # NVRTC sees CUDA's headers and knows a few of C++'s; for more, nvcc makes the cubin.
    return "nvrtc" if all(_NVRTC_KNOWS.match(h) for h in _SYSTEM.findall(text)) else "cubin"


def _headers(source: Path, text: str) -> list[str]:
    """Names and texts of the local headers reached, in order of discovery."""
    parts: list[str] = []
    seen, queue = {source.resolve()}, [(source, text)]
    while queue:
        includer, content = queue.pop(0)
        for name in _INCLUDE.findall(content):
            header = (includer.parent / name).resolve()
            if header in seen or not header.is_file():
                continue
            seen.add(header)
            body = header.read_text(encoding="utf-8", errors="replace")
            parts += [name, body]
            queue.append((header, body))
    return parts


def shared_library(how: Recipe) -> Path:
    """Path of the compiled library, compiled now if it lies nowhere. Raises CompileFailed."""
    for folder in os.environ.get(BUILD, "").split(os.pathsep):
        if folder and (Path(folder) / how.file).is_file():
            return Path(folder) / how.file
    prebuilt = how.source.parent / "prebuilt"
    if prebuilt.is_dir() and (found := prebuilt / target(how.form) / how.file).is_file():
        return found
    tools = toolchain(how.form)
    path = cache_root() / tools.name / how.file
    if not path.is_file():
        compile_library(how, tools, path, run_compiler)
    return path


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cuagent" / "kernels"


Run = Callable[[list[str], Path], tuple[int, str]]
"""Runs a compiler that may write into one folder only; exit status and all it printed."""


def compile_library(how: Recipe, tools: Toolchain, path: Path, run: Run) -> None:
    """Compile to `path`, with what the compiler said beside it as `.log`. Raises CompileFailed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not beside its place: a compiler under another user id cannot enter a private home.
    with tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch:
        output = Path(scratch) / path.name
        status, text = run(tools.argv(how, output, Path(scratch)), Path(scratch))
        if status or not output.is_file():
            first = next((line for line in text.splitlines() if _ERROR.search(line)), text[:200])
            raise CompileFailed(
                f"{how.source.name} does not compile: {first.strip()}", text or SILENT
            )
        # Equal sources may lie in many folders, so what is kept names none of them.
        log = text.replace(f"{how.source.parent}/", "").encode()
        _place(log, path.with_suffix(".log"))
        _place(output.read_bytes(), path)


def _place(content: bytes, path: Path) -> None:
    """Written under another name and renamed: a reader sees the whole file or none."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def run_compiler(argv: list[str], scratch: Path) -> tuple[int, str]:
    """The plain way to run a compiler: as this user, with a time limit."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        # nvcc and g++ are drivers: the pass that hangs is a child of theirs.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        message = f"the compiler did not end within {SECONDS:.0f} s"
        raise CompileFailed(message, message) from error
    return process.returncode, text


def _expanded(flag: str, form: str) -> tuple[str, ...]:
    if form == "g++":
        return FAST_MATH if flag == "-ffast-math" else (flag,)
    if flag == "-ffast-math":
        return ("--use_fast_math",)
    # Flags of the host compiler only, which nvcc passes on by name.
    return ("-Xcompiler", flag) if flag.startswith(("-f", "-mp")) and form == "nvcc" else (flag,)


@functools.cache
def toolchain(form: str) -> Toolchain:
    """The compiler for a form of source, as installed here. Raises CompilerMissing."""
    libraries: tuple[str, ...] = ()
    command: tuple[str, ...]
    if form == "g++":
        compiler = _gxx()
        command = (compiler, *CPU_FLAGS)
        libraries = _openmp()
    elif form == "nvrtc" and (nvrtc := _nvrtc()):
        compiler = nvrtc
        script = str(Path(__file__).with_name("nvrtc.py"))
        command = (sys.executable, "-I", script, nvrtc, f"-arch={target(form)}", *NVRTC_FLAGS)
    else:
        compiler = nvcc()
        arch = target(form).removeprefix("sm_")
        code = ("-gencode", f"arch=compute_{arch},code=sm_{arch}")
        command = (compiler, *(CUDA_FLAGS if form == "nvcc" else CUBIN_FLAGS), *code)
    version = Path(compiler).name if ".so" in compiler else _version(compiler)
    parts = "\0".join((FORMAT, version, *command[1:], *libraries, SHIM))
    name = f"{target(form)}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"
    return Toolchain(form, command, libraries, target(form), version, name)


def _gxx() -> str:
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted) or shutil.which("c++")
    if found is None:
        raise CompilerMissing("no C++ compiler found: install g++ or set CXX to one")
    return found


def nvcc() -> str:
    """Path of nvcc. Raises CompilerMissing."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if found is None:
        raise CompilerMissing("no nvcc found: install the CUDA toolkit or set CUDA_HOME")
    return found


def _nvrtc() -> str | None:
    """Path of libnvrtc: the wheel's that torch came with, else the toolkit's."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = [f.glob("*/lib/libnvrtc.so.*") for f in folders] + [
        Path(home).glob("lib64/libnvrtc.so.*")
    ]
    found = [str(p) for place in places for p in sorted(place) if "builtins" not in p.name]
    return found[0] if found else None


def _openmp() -> tuple[str, ...]:
    spec = importlib.util.find_spec("torch")
    home = Path(spec.origin).parent if spec and spec.origin else None
    if home is None:
        return ()
    hashed = [*home.glob("lib/libgomp-*.so*"), *home.parent.glob("torch.libs/libgomp-*.so*")]
    return ("-Wl,--as-needed", str(hashed[0])) if hashed else ()


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else compiler)


@functools.cache
def target(form: str) -> str:
    """What a result runs on: an architecture of a GPU, or the features of this processor."""
    if form != "g++":
        return f"sm_{os.environ.get(ARCH) or _device_arch() or DEFAULT_ARCH}"
    info = Path("/proc/cpuinfo")
    features = (
        re.search(r"^(?:flags|Features).*$", info.read_text(), re.MULTILINE)
        if info.exists()
        else None
    )
    having = features[0] if features else platform.processor()
    text = f"{platform.machine()} {platform.system()} {having}"
    return f"cpu-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _device_arch() -> str | None:
    """Compute capability of the current device, with the suffix for its own instructions."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
    elif (smi := shutil.which("nvidia-smi")) is not None:
        # Asked from outside: a process that may still fork must not touch CUDA.
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
