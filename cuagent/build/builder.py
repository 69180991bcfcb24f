"""The trusted builder: every source of an attempt to a library, or short diagnostics.

It uses the loader's own recipe, toolchain and key (`cuagent.kernels.compiler`), so that the process
that runs the attempt finds each library through `environment(build)` and never compiles.
Not covered: Triton and `load_inline` in `model_new.py`, which compile where they run.
Invariants: the text of an attempt meets a compiler only inside `confine`, which caps size and time.
A library comes from the cache only if every file that its compiler could read is the same: the
compiler's folder holds the sources and headers of the attempt, and the key covers all of them.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuagent.attempt import KERNELS, MODULE, Attempt
from cuagent.build.confine import TOTAL_SECONDS, Confine, lay_down, runner, sandboxed
from cuagent.build.diagnostics import diagnose, foreign_headers
from cuagent.build.resources import resources
from cuagent.build.result import Build, Diagnostic, Library
from cuagent.build.vectors import reporting, reports
from cuagent.kernels import compiler, dependencies, prototypes
from cuagent.task.task import Device

MOST_SOURCES = 100
"""Of one attempt."""


def build(
    attempt: Attempt, device: Device, *, cache: Path | None = None, confine: Confine = sandboxed
) -> Build:
    """Compile all sources in parallel, except those in the cache.

    `cache` is the loader's own by default. On a CPU task `.cu` sources are left
    out, with a warning. Raises CompilerMissing, which is no fault of the attempt.
    """
    start = time.perf_counter()
    root = cache or compiler.cache_root()
    sources = [s for s in attempt.kernels if device is Device.CUDA or s.endswith(".cpp")]
    diagnostics = [
        Diagnostic(s, 0, "not built: the task runs on the CPU", "", "warning")
        for s in attempt.kernels
        if s not in sources
    ]
    if len(sources) > MOST_SOURCES:
        many = f"{len(sources)} sources; at most {MOST_SOURCES} are compiled: write fewer"
        diagnostics.append(Diagnostic(sources[0], 0, many, ""))
        return Build(attempt.digest, (), tuple(diagnostics), False, time.perf_counter() - start)
    with tempfile.TemporaryDirectory(prefix="cuagent-build-") as name:
        folder = Path(name).resolve()
        lay_down(attempt, folder)
        run = runner(folder, confine, TOTAL_SECONDS)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            results = list(pool.map(lambda s: _one(attempt, folder, s, root, run), sources))
    libraries = [r for r, _ in results if r is not None]
    diagnostics += [d for _, found in results for d in found]
    return Build(
        attempt=attempt.digest,
        libraries=tuple(libraries),
        diagnostics=tuple(diagnostics),
        ok=len(libraries) == len(sources),
        seconds=time.perf_counter() - start,
    )


def environment(build: Build) -> dict[str, str]:
    """Variables under which the loader finds the libraries of this build in their folders."""
    folders = dict.fromkeys(str(library.path.parent) for library in build.libraries)
    return {compiler.BUILD: os.pathsep.join(folders)}


def versions() -> dict[str, str]:
    """The compilers found here, by name; one that is missing is left out."""
    found = {"platform": platform.platform()}
    for form in ("g++", "nvcc", "nvrtc"):
        try:
            tools = compiler.toolchain(form)
        except compiler.CompilerMissing:
            continue
        found[form] = tools.version
        if form != "g++":
            found["arch"] = tools.target
    return found


def _one(
    attempt: Attempt, folder: Path, source: str, root: Path, run: compiler.Run
) -> tuple[Library | None, list[Diagnostic]]:
    start = time.perf_counter()
    path = folder / source
    text = dict(attempt.files)[source]
    foreign = foreign_headers(source, text)
    if foreign:
        return None, foreign
    try:
        prototypes.parse(text, source)
        how = compiler.read_recipe(path)
        _require_covered(how, folder)
        tools = compiler.toolchain(how.form)
        library = root / tools.name / how.file
        cached = dependencies.is_current(library, path.parent)
        if not cached:
            if reports(tools):
                run = reporting(run, path, library)
            compiler.compile_library(how, tools, library, run)
    except prototypes.PrototypeError as error:
        return None, [Diagnostic(source, 0, str(error).removeprefix(f"{source}: "), "")]
    except compiler.CompileFailed as error:
        return None, diagnose(error.output, attempt, source, folder)
    log = library.with_suffix(".log")
    said = log.read_text() if log.is_file() else ""
    warnings = [d for d in diagnose(said, attempt, source, folder) if d.severity == "warning"]
    seconds = time.perf_counter() - start
    return Library(source, library, how.key, cached, seconds, resources(said)), warnings


def _require_covered(how: compiler.Recipe, folder: Path) -> None:
    """Raise CompileFailed where a file that the compiler can read is not in the key."""
    known = {how.tree.root / name for name, _ in how.tree.files}
    for path in folder.rglob("*"):
        if path.is_file() and path != folder / MODULE and path not in known:
            name = path.relative_to(folder).as_posix()
            raise compiler.CompileFailed(
                how.source.name, f"{name} lies outside {KERNELS}/; move all sources there"
            )
