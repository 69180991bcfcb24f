"""From a source to a loadable library: which compiler, which flags, and where the result lies.

Libraries are found by content: first in the folders named by CUAGENT_BUILD (read only), then in
`prebuilt/` beside the source, then in the cache of the trusted builder, then in the cache of this
loader, else they are compiled into the last. The key covers every source and header of the tree
(`reach.tree_of`) with its path, and the flags that the source asks for, from ALLOWED_FLAGS. In the
two caches a library also has a manifest: the other files that its compiler read, with their
digests, which must be the same now. The compiler, its version, the processor and the base flags are
the toolchain (`toolchain.py`), one cache folder each. A process that only looks libraries up needs
no compiler.

The builder's cache is another one because its compilers see an attempt and nothing else: what the
loader compiles may also depend on files elsewhere and on variables such as CPATH.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import reach
from .toolchain import (
    DEPENDENCIES,
    FORMAT,
    CompilerMissing,
    Toolchain,
    nvcc,
    target,
    toolchain,
)

__all__ = [
    "ALLOWED_FLAGS",
    "BUILD",
    "FIXED",
    "SECONDS",
    "CompileFailed",
    "CompilerMissing",
    "Recipe",
    "Run",
    "Toolchain",
    "cache_root",
    "compile_library",
    "nvcc",
    "recipe",
    "run_compiler",
    "shared_library",
    "target",
    "toolchain",
]

BUILD = "CUAGENT_BUILD"
"""Environment: folders of ready libraries, separated as in PATH."""
SECONDS = 300.0
"""Of one run of a compiler."""
MOST_OUTPUT = 4 << 20
"""Bytes that are read of what a compiler prints."""
MOST_FLAGS = 64
LONGEST_FLAG = 200
"""Characters. Linux takes 128 KiB in one argument of a command."""
FIXED = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
"""Environment of every compiler: messages in English, and `__DATE__` the same on every day."""
SETTINGS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
    *("GCC_EXEC_PREFIX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)
"""Environment that compilers heed."""
SILENT = "the compiler failed and printed nothing"

ALLOWED_FLAGS = re.compile(
    r"-ffast-math|-fassociative-math|-fno-signed-zeros|-freciprocal-math|-ffinite-math-only"
    r"|-ffp-contract=(off|on|fast)|-O[0-3]|-std=c\+\+(17|20|23)|-funroll-loops"
    r"|-mprefer-vector-width=(128|256|512)|--?use_fast_math|--?fmad=(true|false)"
    r"|--?ftz=(true|false)|--?prec-(div|sqrt)=(true|false)|--?maxrregcount=\d+"
    r"|--extra-device-vectorization|--expt-relaxed-constexpr|--extended-lambda|-lcuda"
    r"|-D\w+(=[\w.+-]+)?"
)
_ASKED = re.compile(r"^[ \t]*//[ \t]*cuagent:[ \t]*flags[ \t]+(.*)$", re.MULTILINE)
_SYSTEM = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_NVRTC_KNOWS = re.compile(
    r"cuda|mma\.h|cooperative_groups|math_constants\.h|(c?stdint|c?math|c?float|c?limits)(\.h)?$"
)
_ERROR = re.compile(r"\berror\s*:|\): error|undefined reference")
_KERNEL_ONLY = re.compile(r'extern\s*"C"\s*(\{\s*)?__global__')


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
    """sha256 over the files of the tree, the place of the source in it and the asked flags."""
    tree: reach.Tree = field(repr=False)

    @property
    def file(self) -> str:
        """Name of the result in every folder that may hold it."""
        return f"{self.key}.{'cubin' if self.form in ('nvrtc', 'cubin') else 'so'}"


def recipe(source: Path) -> Recipe:
    """Read a source and its tree. Raises CompileFailed, also for a flag that is not allowed."""
    try:
        text = source.read_bytes().decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start})"
        raise CompileFailed(f"{source.name}: {message}", message) from error
    asked = _asked(text, source.name)
    form = _form(source, text)
    tree = reach.tree_of(source)
    place = source.relative_to(tree.root).as_posix()
    digest = hashlib.sha256()
    for part in (FORMAT, form, str(len(asked)), *asked, place, text):
        _add(digest, part.encode(errors="surrogateescape"))
    for name, content in tree.files:
        _add(digest, os.fsencode(name))
        _add(digest, content)
    return Recipe(source, form, asked, digest.hexdigest(), tree)


def _add(digest: hashlib._Hash, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little") + part)


def _asked(text: str, name: str) -> tuple[str, ...]:
    """The flags that a source asks for. Raises CompileFailed."""
    asked = tuple(flag for line in _ASKED.findall(text) for flag in line.split())
    message = ""
    if len(asked) > MOST_FLAGS:
        message = f"the source asks for {len(asked)} flags; it may ask for {MOST_FLAGS}"
    for flag in asked:
        if len(flag) > LONGEST_FLAG:
            message = f"the flag {flag[:40]}... has {len(flag)} characters; {LONGEST_FLAG} may be"
        elif not ALLOWED_FLAGS.fullmatch(flag):
            message = f"the flag {flag} is not among those a source may ask for"
    if message:
        raise CompileFailed(f"{name}: {message}", message)
    return asked


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


def shared_library(how: Recipe) -> Path:
    """Path of the compiled library, compiled now if it lies nowhere. Raises CompileFailed."""
    for folder in os.environ.get(BUILD, "").split(os.pathsep):
        if folder and (Path(folder) / how.file).is_file():
            return Path(folder) / how.file
    prebuilt = how.source.parent / "prebuilt"
    if prebuilt.is_dir() and (found := prebuilt / target(how.form) / how.file).is_file():
        return found
    tools = toolchain(how.form)
    built = cache_root() / tools.name / how.file
    own = cache_root() / OWN / f"{tools.name}-{_settings()}" / how.file
    for path in (built, own):
        if path in _CHECKED and path.is_file():
            return path
    doubtful = reach.doubtful(
        how.tree, how.source.read_text(), how.form, lists_incbin=tools.lists_incbin
    )
    for path in (built, own):
        if not doubtful and reach.current(path, how.source.parent):
            _CHECKED.add(path)
            return path
    compile_library(how, tools, own, run_compiler)
    _CHECKED.add(own)
    return own


_CHECKED: set[Path] = set()
"""Libraries that this process compiled, or whose manifest it has checked."""


def _settings() -> str:
    text = "\0".join(f"{name}={os.environ.get(name, '')}" for name in SETTINGS)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


OWN = "loaded"
"""Folder of the cache for what this loader compiles."""


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cuagent" / "kernels"


Run = Callable[[list[str], Path, Path], tuple[int, str]]
"""Runs a compiler: (argv, writable scratch, working folder) -> exit status and what it printed."""


def compile_library(how: Recipe, tools: Toolchain, path: Path, run: Run) -> None:
    """Compile to `path`, with a log and a manifest beside it. Raises CompileFailed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not beside its place: a compiler under another user id cannot enter a private home.
    with tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch:
        output = Path(scratch) / path.name
        argv = tools.argv(how, output, Path(scratch))
        status, text = run(argv, Path(scratch), how.source.parent)
        if status or not output.is_file():
            first = next((line for line in text.splitlines() if _ERROR.search(line)), text[:200])
            raise CompileFailed(
                f"{how.source.name} does not compile: {first.strip()}", text or SILENT
            )
        known = _manifest(how, Path(scratch))
        if recipe(how.source).key != how.key:
            message = "a file changed while it was compiled; load it again"
            raise CompileFailed(f"{how.source.name}: {message}", message)
        # Equal sources may lie in many folders, so what is kept names none of them.
        log = text.replace(f"{how.source.parent}/", "").encode()
        _place(log, path.with_suffix(".log"))
        # The manifest last: a library that has none is compiled again.
        reach.manifest_path(path).unlink(missing_ok=True)
        _place(output.read_bytes(), path)
        _place(known.encode(), reach.manifest_path(path))


def _manifest(how: Recipe, scratch: Path) -> str:
    """What the compiler says that it read. Raises CompileFailed for what is no source."""
    folder = how.source.parent
    try:
        names = [
            name
            for file in DEPENDENCIES
            for name in reach.listed(os.fsdecode(reach.contents(scratch / file)), folder, scratch)
        ]
        return reach.manifest(names, folder, how.tree)
    except ValueError as error:
        raise CompileFailed(f"{how.source.name}: {error}", str(error)) from error


def _place(content: bytes, path: Path) -> None:
    """Written under another name and renamed: a reader sees the whole file or none."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def run_compiler(
    argv: list[str], scratch: Path, folder: Path, seconds: float = SECONDS
) -> tuple[int, str]:
    """Run a compiler in `folder` as this user. Raises CompileFailed after `seconds`."""
    environment = {**os.environ, **FIXED, "TMPDIR": str(scratch)}
    # A file, not a pipe: a pipe would be read without a bound, and until all who hold it end.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            # nvcc and g++ are drivers: the pass that hangs is a child of theirs.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            message = f"the compiler did not end within {seconds:.0f} s"
            raise CompileFailed(message, message) from error
        output.seek(0)
        return process.returncode, output.read(MOST_OUTPUT).decode(errors="replace")
