"""Compile a source to a loadable library, or find the library that was compiled earlier.

A library is looked up by content, in this order: the folders named by CUAGENT_BUILD (read only),
`prebuilt/` next to the source (also code for an earlier GPU of the same major version), the cache
of the trusted builder, the cache of this loader. If it is in none of them, it is compiled into the
last.

The key covers every source and header of the tree (`dependencies.tree_of`) with its path, and the
flags that the source requests from ALLOWED_FLAGS. In the two caches a library also has a manifest:
the other files that its compiler read, with their digests, which must still be the same. Compiler,
version, processor and base flags form the toolchain (`toolchain.py`); each toolchain has its own
cache folder. A process that only looks up libraries needs no compiler.
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

from . import dependencies
from .toolchain import (
    DEPENDENCIES,
    FORMAT,
    CompilerMissing,
    Toolchain,
    nvcc,
    runs_on,
    target,
    toolchain,
)

__all__ = [
    "ALLOWED_FLAGS",
    "BUILD",
    "FIXED",
    "TIME_LIMIT_S",
    "CompileFailed",
    "CompilerMissing",
    "Recipe",
    "Run",
    "Toolchain",
    "cache_root",
    "compile_library",
    "nvcc",
    "read_recipe",
    "run_compiler",
    "shared_library",
    "target",
    "toolchain",
]

BUILD = "CUAGENT_BUILD"
"""Environment variable with folders of compiled libraries, separated as in PATH."""
TIME_LIMIT_S = 300.0
"""Time limit in seconds for one run of a compiler."""
MAX_OUTPUT = 4 << 20
"""Largest number of bytes that are read of a compiler's messages."""
MAX_FLAGS = 64
"""Largest number of compiler flags that one source may request."""
MAX_FLAG_LENGTH = 200
"""Largest number of characters of a requested flag. Linux accepts 128 KiB per argument of a
command."""
FIXED = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
"""Environment variables that are the same for every compiler: messages in English, and one constant
`__DATE__`."""
SETTINGS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
    *("GCC_EXEC_PREFIX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)
"""Environment variables that change a compiler's result. The loader's cache key covers them."""
SILENT = "the compiler failed and printed nothing"

ALLOWED_FLAGS = re.compile(
    r"-ffast-math|-fassociative-math|-fno-signed-zeros|-freciprocal-math|-ffinite-math-only"
    r"|-ffp-contract=(off|on|fast)|-O[0-3]|-std=c\+\+(17|20|23)|-funroll-loops"
    r"|-mprefer-vector-width=(128|256|512)|--?use_fast_math|--?fmad=(true|false)"
    r"|--?ftz=(true|false)|--?prec-(div|sqrt)=(true|false)|--?maxrregcount=\d+"
    r"|--extra-device-vectorization|--expt-relaxed-constexpr|--extended-lambda|-lcuda"
    r"|-D\w+(=[\w.+-]+)?"
)
_REQUEST = re.compile(r"^[ \t]*//[ \t]*cuagent:[ \t]*flags[ \t]+(.*)$", re.MULTILINE)
_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_NVRTC_KNOWS = re.compile(
    r"cuda|mma\.h|cooperative_groups|math_constants\.h|(c?stdint|c?math|c?float|c?limits)(\.h)?$"
)
_ERROR = re.compile(r"\berror\s*:|\): error|undefined reference")
_KERNEL_ONLY = re.compile(r'extern\s*"C"\s*(\{\s*)?__global__')


class CompileFailed(RuntimeError):
    """Error: the compiler refused the source. `output` has all its messages."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the compilation of one source, except the toolchain.

    `read_recipe` makes it without running a compiler.
    """

    source: Path
    form: str
    """Kind of compilation: `g++` or `nvcc`; `nvrtc` or `cubin` if the source exports only
    `__global__` kernels."""
    requested_flags: tuple[str, ...]
    """Compiler flags that the source requests in a comment."""
    key: str
    """sha256 over the files of the tree, the source's path in it and the requested flags."""
    tree: dependencies.Tree = field(repr=False)

    @property
    def file(self) -> str:
        """File name of the compiled library, in every folder where it is looked up."""
        return f"{self.key}.{'cubin' if self.form in ('nvrtc', 'cubin') else 'so'}"


def read_recipe(source: Path) -> Recipe:
    """Read a source and its tree; return the recipe.

    Raises CompileFailed, also for a flag that is not allowed.
    """
    try:
        text = source.read_bytes().decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start})"
        raise CompileFailed(f"{source.name}: {message}", message) from error
    flags = _requested_flags(text, source.name)
    form = _form(source, text)
    tree = dependencies.tree_of(source)
    relative = source.relative_to(tree.root).as_posix()
    digest = hashlib.sha256()
    for part in (FORMAT, form, str(len(flags)), *flags, relative, text):
        _add(digest, part.encode(errors="surrogateescape"))
    for name, content in tree.files:
        _add(digest, os.fsencode(name))
        _add(digest, content)
    return Recipe(source, form, flags, digest.hexdigest(), tree)


def _add(digest: hashlib._Hash, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little") + part)


def _requested_flags(text: str, name: str) -> tuple[str, ...]:
    """Return the compiler flags that a source requests in comments. Raises CompileFailed."""
    flags = tuple(flag for line in _REQUEST.findall(text) for flag in line.split())
    message = ""
    if len(flags) > MAX_FLAGS:
        message = f"the source requests {len(flags)} flags; the limit is {MAX_FLAGS}"
    for flag in flags:
        if len(flag) > MAX_FLAG_LENGTH:
            size = f"{len(flag)} characters; the limit is {MAX_FLAG_LENGTH}"
            message = f"the flag {flag[:40]}... has {size}"
        elif not ALLOWED_FLAGS.fullmatch(flag):
            message = f"the flag {flag} is not allowed in a source"
    if message:
        raise CompileFailed(f"{name}: {message}", message)
    return flags


def _form(source: Path, text: str) -> str:
    if source.suffix == ".cpp":
        return "g++"
    if source.suffix != ".cu":
        message = "the name of a kernel source must end with .cu or .cpp"
        raise CompileFailed(f"{source.name}: {message}", message)
    if "<<<" in text or not _KERNEL_ONLY.search(text):
        return "nvcc"
    # NVRTC has CUDA's headers and a few of C++'s; with other headers nvcc compiles the cubin.
    headers = _SYSTEM_HEADER.findall(text)
    return "nvrtc" if all(_NVRTC_KNOWS.match(h) for h in headers) else "cubin"


def shared_library(recipe: Recipe) -> Path:
    """Return the path of the compiled library; compile it if it is not found.

    Raises CompileFailed or CompilerMissing.
    """
    for folder in os.environ.get(BUILD, "").split(os.pathsep):
        if folder and (Path(folder) / recipe.file).is_file():
            return Path(folder) / recipe.file
    prebuilt = recipe.source.parent / "prebuilt"
    for machine in runs_on(target(recipe.form)) if prebuilt.is_dir() else ():
        if (found := prebuilt / machine / recipe.file).is_file():
            return found
    tools = toolchain(recipe.form)
    built = cache_root() / tools.name / recipe.file
    loaded = cache_root() / LOADED / f"{tools.name}-{_settings()}" / recipe.file
    for path in (built, loaded):
        if path in _CHECKED and path.is_file():
            return path
    unlisted = dependencies.may_have_unlisted(
        recipe.tree, recipe.source.read_text(), recipe.form, lists_incbin=tools.lists_incbin
    )
    for path in (built, loaded):
        if not unlisted and dependencies.is_current(path, recipe.source.parent):
            _CHECKED.add(path)
            return path
    compile_library(recipe, tools, loaded, run_compiler)
    _CHECKED.add(loaded)
    return loaded


_CHECKED: set[Path] = set()
"""Libraries that need no further check, because this process compiled them or checked their
manifest."""


def _settings() -> str:
    text = "\0".join(f"{name}={os.environ.get(name, '')}" for name in SETTINGS)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


LOADED = "loaded"
"""Name of the cache folder for libraries that this loader compiles."""


def cache_root() -> Path:
    """Return the folder of all cached libraries of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cuagent" / "kernels"


Run = Callable[[list[str], Path, Path], tuple[int, str]]
"""Function that runs a compiler: (command, writable scratch folder, working folder) -> (exit
status, messages)."""


def compile_library(recipe: Recipe, tools: Toolchain, path: Path, run: Run) -> None:
    """Compile a source to the library `path`, and write a log and a manifest next to it.

    Raises CompileFailed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{path.parent} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that "
            "you may write"
        )
        raise CompileFailed(message, message) from error
    # A folder in TMPDIR: a compiler under another user id cannot enter a private home.
    with tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch:
        output = Path(scratch) / path.name
        argv = tools.argv(recipe, output, Path(scratch))
        status, text = run(argv, Path(scratch), recipe.source.parent)
        if status or not output.is_file():
            first = next((line for line in text.splitlines() if _ERROR.search(line)), text[:200])
            raise CompileFailed(
                f"{recipe.source.name} does not compile: {first.strip()}", text or SILENT
            )
        manifest = _manifest(recipe, Path(scratch))
        if read_recipe(recipe.source).key != recipe.key:
            message = "a file changed while it was compiled; load it again"
            raise CompileFailed(f"{recipe.source.name}: {message}", message)
        # Equal sources in several folders share one log, so it names none of the folders.
        log = text.replace(f"{recipe.source.parent}/", "").encode()
        _write_whole(log, path.with_suffix(".log"))
        # Write the manifest last: a library without a manifest is compiled again.
        dependencies.manifest_path(path).unlink(missing_ok=True)
        _write_whole(output.read_bytes(), path)
        _write_whole(manifest.encode(), dependencies.manifest_path(path))


def _manifest(recipe: Recipe, scratch: Path) -> str:
    """Return the manifest, as JSON, of the files that the compiler read.

    Raises CompileFailed if one of them is not a source file.
    """
    folder = recipe.source.parent
    try:
        rules = [os.fsdecode(dependencies.contents(scratch / file)) for file in DEPENDENCIES]
        names = [name for rule in rules for name in dependencies.listed(rule, folder, scratch)]
        return dependencies.manifest(names, folder, recipe.tree)
    except ValueError as error:
        raise CompileFailed(f"{recipe.source.name}: {error}", str(error)) from error


def _write_whole(content: bytes, path: Path) -> None:
    """Write a file atomically: a reader of `path` sees all of it or none."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def run_compiler(
    argv: list[str], scratch: Path, folder: Path, seconds: float = TIME_LIMIT_S
) -> tuple[int, str]:
    """Run a compiler in `folder` without a sandbox; return its exit status and its messages.

    Raises CompileFailed after `seconds`.
    """
    environment = {**os.environ, **FIXED, "TMPDIR": str(scratch)}
    # A pipe would be read without a size limit, and until every process that holds it ends.
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
            # nvcc and g++ start other programs; kill the program that hangs with its group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            message = (
                f"the compiler did not finish within {seconds:.0f} s; instantiate fewer templates, "
                "unroll less, or split the source"
            )
            raise CompileFailed(message, message) from error
        output.seek(0)
        return process.returncode, output.read(MAX_OUTPUT).decode(errors="replace")
