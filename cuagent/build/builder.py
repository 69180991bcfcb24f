"""Compile each source of an attempt to a library, or return short diagnostics.

The builder is trusted. It compiles in the same way as the loader (`cuagent.kernels.compiler`) and
computes the same cache keys. So the process that runs the attempt finds each library through
`environment(build)` and never compiles.

Not covered: Triton and `load_inline` in `model_new.py`, which compile in the worker.

Invariants: a compiler reads the text of an attempt only inside `confine`, with limits on size and
time. A library comes from the cache only if every file that its compiler could read is unchanged:
the compiler's folder has only the sources and headers of the attempt, and the key covers all of
them.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuagent.attempt import KERNELS, MODULE, Attempt
from cuagent.build.confine import TOTAL_SECONDS, Confine, runner, sandboxed, write_sources
from cuagent.build.diagnostics import diagnose, foreign_headers
from cuagent.build.races import watched
from cuagent.build.resources import resources
from cuagent.build.result import Build, Diagnostic, Library
from cuagent.build.vectors import has_vector_report, with_vector_report
from cuagent.kernels import compiler, dependencies, prototypes
from cuagent.task.task import Device

MOST_SOURCES = 100
"""Largest number of sources of one attempt; more are refused."""


def build(
    attempt: Attempt,
    device: Device,
    *,
    cache: Path | None = None,
    confine: Confine = sandboxed,
    arch: str = "",
    races: bool = False,
) -> Build:
    """Compile all sources of an attempt in parallel; take unchanged ones from the cache.

    `arch` is the compute capability to compile for, such as 90a; "" means this machine's GPU. With
    `races` the libraries report data races (`races.py`). `cache` is the cache folder, by default
    the loader's. A CPU task skips `.cu` sources, with a warning. Raises CompilerMissing if the
    machine lacks a compiler; this is not a fault of the attempt.
    """
    start = time.perf_counter()
    root = cache or compiler.cache_root()
    sources = [s for s in attempt.kernels if device is Device.CUDA or s.endswith(".cpp")]
    diagnostics = [
        Diagnostic(s, 0, "not compiled: the task runs on the CPU; use a .cpp source", "", "warning")
        for s in attempt.kernels
        if s not in sources
    ]
    if len(sources) > MOST_SOURCES:
        message = f"{len(sources)} sources; at most {MOST_SOURCES} are compiled: write fewer"
        diagnostics.append(Diagnostic(sources[0], 0, message, ""))
        return Build(attempt.digest, (), tuple(diagnostics), False, time.perf_counter() - start)
    with tempfile.TemporaryDirectory(prefix="cuagent-build-") as name:
        folder = Path(name).resolve()
        write_sources(attempt, folder)
        run = runner(folder, confine, TOTAL_SECONDS)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            results = list(
                pool.map(
                    lambda s: _build_source(attempt, folder, s, root, run, arch, races), sources
                )
            )
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
    """Return the environment variables through which the loader finds the libraries of this
    build."""
    folders = dict.fromkeys(str(library.path.parent) for library in build.libraries)
    return {compiler.BUILD: os.pathsep.join(folders)}


def versions() -> dict[str, str]:
    """Return the versions of the installed compilers, and the platform, by name."""
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


def _build_source(
    attempt: Attempt,
    folder: Path,
    source: str,
    root: Path,
    run: compiler.Run,
    arch: str,
    races: bool,
) -> tuple[Library | None, list[Diagnostic]]:
    start = time.perf_counter()
    path = folder / source
    text = dict(attempt.files)[source]
    foreign = foreign_headers(source, text)
    if foreign:
        return None, foreign
    faulty = _prototype_fault(source, text)
    if faulty is not None and len(text) > prototypes.MAX_CHARACTERS:
        return None, [faulty]
    try:
        recipe = compiler.read_recipe(path)
        _require_covered(recipe, folder)
        tools = compiler.toolchain(recipe.form, arch)
        if races:
            tools = watched(tools)
        library = root / tools.name / recipe.file
        cached = dependencies.is_current(library, path.parent)
        if not cached:
            if has_vector_report(tools) and not races:
                run = with_vector_report(run, path, library)
            compiler.compile_library(recipe, tools, library, run)
    except compiler.CompileFailed as error:
        return None, diagnose(error.output, attempt, source, folder)
    if faulty is not None:
        return None, [faulty]
    log = library.with_suffix(".log")
    output = log.read_text() if log.is_file() else ""
    warnings = [d for d in diagnose(output, attempt, source, folder) if d.severity == "warning"]
    seconds = time.perf_counter() - start
    return Library(source, library, recipe.key, cached, seconds, resources(output)), warnings


def _prototype_fault(source: str, text: str) -> Diagnostic | None:
    """Return an error if the prototypes of a source's exported functions cannot be parsed, else
    None.

    The compiler runs anyway: a missing parenthesis also hides a function, and only the compiler's
    message names the line.
    """
    try:
        prototypes.parse(text, source)
    except prototypes.PrototypeError as error:
        return Diagnostic(source, 0, str(error).removeprefix(f"{source}: "), "")
    return None


def _require_covered(recipe: compiler.Recipe, folder: Path) -> None:
    """Raise CompileFailed if `folder` has a file that the compiler can read but the cache key
    omits."""
    covered = {recipe.tree.root / name for name, _ in recipe.tree.files}
    for path in folder.rglob("*"):
        if path.is_file() and path != folder / MODULE and path not in covered:
            name = path.relative_to(folder).as_posix()
            raise compiler.CompileFailed(
                recipe.source.name, f"{name} is outside {KERNELS}/; move all sources there"
            )
